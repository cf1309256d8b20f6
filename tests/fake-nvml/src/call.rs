//! The steps of every call before it is answered: the file is read again if it has
//! changed, faults are applied, handles are looked up.

use std::{
    collections::BTreeSet,
    env,
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::MetadataExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, SystemTime},
};

use nvml_wrapper_sys::bindings::nvmlDevice_t;

use crate::{
    board::{Board, Card, Port},
    c::{Answer, GPU_IS_LOST, INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS, UNINITIALIZED, UNKNOWN},
    config::{Config, Fault},
};

/// Exports functions under their C names. Each body gets the [`Call`] and returns an
/// [`Answer`]. The compiler checks that the signature is NVML's.
macro_rules! export {
    ($(fn $name:ident($call:ident $(, $arg:ident: $type:ty)* $(,)?) $body:block)*) => {$(
        #[allow(non_snake_case, reason = "the C name")]
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
            $crate::call::answer(stringify!($name), |$call| $body)
        }
        const _: fn(&nvml_wrapper_sys::bindings::NvmlLib) =
            |lib| $crate::call::same_type(&lib.$name, $name);
    )*};
}
pub(crate) use export;

/// Compiles if `ours` has the type of the function that the bindings load.
pub(crate) fn same_type<F, E>(_theirs: &Result<F, E>, _ours: F) {}

/// The interval at which a hanging call checks whether its fault still exists.
const PAUSE: Duration = Duration::from_millis(5);

/// One call of one function.
pub(crate) struct Call {
    name: &'static str,
    pub(crate) board: Arc<Board>,
}

/// Runs `body` unless a fault applies. Always returns a code, even after a panic.
pub(crate) fn answer(name: &'static str, body: impl FnOnce(&Call) -> Answer) -> u32 {
    let run = || {
        trace_call(name);
        let board = strike(board()?, name, |fault| {
            fault.gpu.is_none() && fault.link.is_none() && fault.field.is_none()
        })?;
        if !name.starts_with("nvmlInit") && lock(&LIBRARY).users == 0 {
            return Err(UNINITIALIZED);
        }
        body(&Call { name, board })
    };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => UNKNOWN,
    }
}

/// One GPU in one call.
pub(crate) struct Gpu {
    name: &'static str,
    pub(crate) board: Arc<Board>,
    pub(crate) position: usize,
}

impl Call {
    /// Returns the positions of the GPUs that the library lists, in its order.
    pub(crate) fn listed(&self) -> impl Iterator<Item = usize> {
        let attaches = lock(&LIBRARY).attaches;
        self.board.listed().filter(move |_| attaches)
    }

    /// Returns the GPU of a handle, unless it is lost or a fault applies to it.
    pub(crate) fn gpu(&self, handle: nvmlDevice_t) -> Answer<Gpu> {
        let handle = handle.addr();
        let position = (handle >> 4 & 0xfff)
            .checked_sub(1)
            .ok_or(INVALID_ARGUMENT)?;
        if handle >> 16 != lock(&LIBRARY).era || position >= self.board.cards.len() {
            return Err(INVALID_ARGUMENT);
        }
        self.gpu_at(position)
    }

    /// Returns the GPU at a position on the board, unless it is lost or a fault applies.
    pub(crate) fn gpu_at(&self, position: usize) -> Answer<Gpu> {
        let strikes_gpu = |fault: &Fault| {
            fault.gpu == Some(position) && fault.link.is_none() && fault.field.is_none()
        };
        let board = strike(Arc::clone(&self.board), self.name, strikes_gpu)?;
        let config = &board.config;
        if config.lost.contains(&position) || config.removed.contains(&position) {
            return Err(GPU_IS_LOST);
        }
        Ok(Gpu {
            name: self.name,
            board,
            position,
        })
    }
}

impl Gpu {
    pub(crate) fn card(&self) -> &Card {
        &self.board.cards[self.position]
    }

    /// Returns the handle, which identifies the GPU while the library is initialised.
    pub(crate) fn handle(&self) -> nvmlDevice_t {
        std::ptr::without_provenance_mut(lock(&LIBRARY).era << 16 | (self.position + 1) << 4)
    }

    /// Returns one of its links, unless a fault applies to it.
    pub(crate) fn port(&self, link: u32) -> Answer<&Port> {
        let card = self.card();
        strike(Arc::clone(&self.board), self.name, |fault| {
            fault.link == Some(link) && fault.field.is_none() && fault.strikes_gpu(self.position)
        })?;
        let known = card.ports.get(link as usize);
        known.ok_or(match card.ports.is_empty() {
            true => NOT_SUPPORTED,
            false => INVALID_ARGUMENT,
        })
    }

    /// Applies the faults of one field of one link.
    pub(crate) fn field(&self, field: u32, link: u32) -> Answer {
        let fits = |fault: &Fault| {
            let names_it = match (fault.field, fault.link) {
                (Some(one), scope) => one == field && scope.is_none_or(|one| one == link),
                (None, scope) => scope == Some(link),
            };
            names_it && fault.strikes_gpu(self.position)
        };
        strike(Arc::clone(&self.board), self.name, fits).map(drop)
    }
}

impl Fault {
    fn strikes_gpu(&self, position: usize) -> bool {
        self.gpu.is_none_or(|gpu| gpu == position)
    }
}

/// Applies the matching faults of the function `name`, and returns the board. A call
/// checks the file once, a hanging call repeatedly.
fn strike(mut board: Arc<Board>, name: &str, fits: impl Fn(&Fault) -> bool) -> Answer<Arc<Board>> {
    let of_name = |fault: &&Fault| fault.function.as_deref().is_none_or(|one| one == name);
    let mut hangs = false;
    loop {
        let struck = || {
            board
                .config
                .faults
                .iter()
                .filter(of_name)
                .filter(|one| fits(one))
        };
        if struck().any(|fault| fault.hang) {
            if !hangs {
                trace(&board.config, format!("hang {name}\n"));
            }
            hangs = true;
            thread::sleep(PAUSE);
            board = self::board()?;
            continue;
        }
        let error = struck().find_map(|fault| fault.error);
        return error.map_or(Ok(board), Err);
    }
}

/// Traces the first call of `name`.
fn trace_call(name: &'static str) {
    static CALLED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    if lock(&CALLED).insert(name)
        && let Ok(board) = board()
    {
        trace(&board.config, format!("call {name}\n"));
    }
}

/// Adds a line to the trace file of the configuration. A call does not fail if the line
/// cannot be written.
fn trace(config: &Config, line: String) {
    let file = config.trace.as_ref();
    let file = file.and_then(|path| OpenOptions::new().append(true).create(true).open(path).ok());
    let _ = file.map(|mut file| file.write_all(line.as_bytes()));
}

/// The users of the library. Handles of an earlier era are invalid.
pub(crate) struct Library {
    pub(crate) users: u32,
    pub(crate) era: usize,
    /// Whether it attaches GPUs; otherwise it lists none.
    pub(crate) attaches: bool,
    /// Open while the library has users, like the driver's devices.
    pub(crate) device: Option<fs::File>,
}

pub(crate) static LIBRARY: Mutex<Library> = Mutex::new(Library {
    users: 0,
    era: 0,
    attaches: false,
    device: None,
});

/// Locks `mutex`, even after a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Path, modification time, length and inode of a file, to notice changes.
type Stamp = (PathBuf, SystemTime, u64, u64);
type Loaded = Option<(Option<Stamp>, Answer<Arc<Board>>)>;

/// Returns the board that the file currently describes.
pub(crate) fn board() -> Answer<Arc<Board>> {
    static LOADED: Mutex<Loaded> = Mutex::new(None);
    let path = config();
    let data = fs::metadata(&path);
    let stamp = data.and_then(|data| Ok((path.clone(), data.modified()?, data.len(), data.ino())));
    let stamp = stamp.ok();
    let mut loaded = lock(&LOADED);
    if let Some((_, board)) = loaded.as_ref().filter(|(at, _)| *at == stamp) {
        return board.clone();
    }
    let board = Board::read(&path).map(Arc::new).map_err(|error| {
        eprintln!("fake NVML: FAKE_NVML_CONFIG={}: {error}", path.display());
        UNKNOWN
    });
    *loaded = Some((stamp, board.clone()));
    board
}

/// Returns the path of the configuration file.
pub(crate) fn config() -> PathBuf {
    env::var_os("FAKE_NVML_CONFIG").unwrap_or_default().into()
}
