//! Writes values through C pointers and reads texts; return values of exported functions.

use std::ffi::{CStr, c_char, c_uint};

use nvml_wrapper_sys::bindings as nvml;

/// The result of a call; the error is NVML's code.
pub(crate) type Answer<T = ()> = Result<T, nvml::nvmlReturn_t>;

pub(crate) const SUCCESS: u32 = nvml::nvmlReturn_enum_NVML_SUCCESS;
pub(crate) const UNINITIALIZED: u32 = nvml::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED;
pub(crate) const INVALID_ARGUMENT: u32 = nvml::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
pub(crate) const NOT_SUPPORTED: u32 = nvml::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
pub(crate) const NOT_FOUND: u32 = nvml::nvmlReturn_enum_NVML_ERROR_NOT_FOUND;
pub(crate) const INSUFFICIENT_SIZE: u32 = nvml::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE;
pub(crate) const TIMEOUT: u32 = nvml::nvmlReturn_enum_NVML_ERROR_TIMEOUT;
pub(crate) const GPU_IS_LOST: u32 = nvml::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST;
pub(crate) const VERSION_MISMATCH: u32 = nvml::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
pub(crate) const UNKNOWN: u32 = nvml::nvmlReturn_enum_NVML_ERROR_UNKNOWN;

/// Writes a value to the caller's pointer.
pub(crate) fn put<T>(to: *mut T, value: T) -> Answer {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the caller of a C function guarantees that it is writable.
    unsafe { to.write(value) };
    Ok(())
}

/// Reads a value from the caller's pointer.
pub(crate) fn get<T: Copy>(from: *const T) -> Answer<T> {
    if from.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the caller of a C function guarantees that it is readable.
    Ok(unsafe { from.read() })
}

/// Returns the caller's array.
pub(crate) fn array<'a, T>(at: *mut T, length: usize) -> Answer<&'a mut [T]> {
    if at.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the caller of a C function guarantees `length` elements
    // that are not used elsewhere before the function returns.
    Ok(unsafe { std::slice::from_raw_parts_mut(at, length) })
}

/// Returns the caller's text.
pub(crate) fn text(from: *const c_char) -> Answer<String> {
    if from.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the caller of a C function guarantees a terminating zero.
    let text = unsafe { CStr::from_ptr(from) };
    Ok(text.to_string_lossy().into_owned())
}

/// Writes a text with its terminating zero, if there is enough room.
pub(crate) fn put_text(to: *mut c_char, length: c_uint, text: &str) -> Answer {
    let room = array(to, length as usize)?;
    if text.len() >= room.len() {
        return Err(INSUFFICIENT_SIZE);
    }
    fill(room, text);
    Ok(())
}

/// Writes as much of a text as fits, with its terminating zero.
pub(crate) fn fill(room: &mut [c_char], text: &str) {
    let room_for_text = room.len().saturating_sub(1);
    let bytes = text.bytes().take(room_for_text);
    let padded = bytes.chain(std::iter::repeat(0));
    for (slot, byte) in room.iter_mut().zip(padded) {
        *slot = byte as c_char;
    }
}
