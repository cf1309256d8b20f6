//! The library itself: initialisation and shutdown, versions, error texts.

use std::{
    ffi::{CStr, c_char, c_int, c_uint},
    fs::File,
};

use nvml_wrapper_sys::bindings::nvmlReturn_t;

use crate::{
    c::{Answer, UNINITIALIZED, put, put_text},
    call::{LIBRARY, config, export, lock},
};

export! {
    fn nvmlInit_v2(_call) { begin(0) }

    fn nvmlInitWithFlags(_call, flags: c_uint) { begin(flags) }

    fn nvmlShutdown(_call) {
        let mut library = lock(&LIBRARY);
        library.users = library.users.checked_sub(1).ok_or(UNINITIALIZED)?;
        if library.users == 0 {
            library.device = None;
        }
        Ok(())
    }

    fn nvmlSystemGetDriverVersion(call, version: *mut c_char, length: c_uint) {
        put_text(version, length, &call.board.config.driver_version)
    }

    fn nvmlSystemGetNVMLVersion(call, version: *mut c_char, length: c_uint) {
        put_text(version, length, &format!("13.{}", call.board.config.driver_version))
    }

    fn nvmlSystemGetCudaDriverVersion(_call, version: *mut c_int) { put(version, 13000) }

    fn nvmlSystemGetCudaDriverVersion_v2(_call, version: *mut c_int) { put(version, 13000) }
}

/// `NVML_INIT_FLAG_NO_ATTACH`. Driver 580.159.04 then counts no GPU, and has no handles: seen on
/// an H100 in a virtual machine, in persistence mode.
const NO_ATTACH: c_uint = 2;

fn begin(flags: c_uint) -> Answer {
    let mut library = lock(&LIBRARY);
    if library.users == 0 {
        library.era += 1;
        library.attaches = flags & NO_ATTACH == 0;
        library.device = File::open(config()).ok();
    }
    library.users += 1;
    Ok(())
}

/// The only function that works without the library being initialised.
#[allow(non_snake_case, reason = "the C name")]
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    error_text(result).as_ptr()
}

fn error_text(code: nvmlReturn_t) -> &'static CStr {
    match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        12 => c"NVML Shared Library Not Found",
        13 => c"Function Not Found",
        15 => c"GPU is lost",
        16 => c"GPU requires reset",
        18 => c"Driver/library version mismatch",
        25 => c"Argument version mismatch",
        _ => c"Unknown Error",
    }
}
