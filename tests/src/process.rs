//! Child processes that never outlive this process, each with its own log.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{LazyLock, Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};

use crate::wait::wait_until;

const TAIL: usize = 15;
/// How long the kernel may take to end a program that is killed.
const END: Duration = Duration::from_secs(30);

/// A running program. It is killed when this value is dropped, and by the kernel when this process
/// ends in any other way.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Mutex<Child>,
    log: PathBuf,
}

/// Returns a command for [`Process::start`].
///
/// With `setpriv --pdeathsig`, the kernel kills the program as soon as the thread that started it
/// ends. The program is in a process group of its own, so that Ctrl-C in the terminal reaches only
/// this process.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--"])
        .arg(program)
        .process_group(0);
    command
}

impl Process {
    /// Starts a command of [`command`]. Its output goes to `NAME.log` in `directory`.
    ///
    /// # Errors
    /// When the log cannot be created or the program cannot be started.
    pub fn start(name: &str, directory: &Path, mut command: Command) -> Result<Self> {
        command.stdin(Stdio::null());
        Self::run(name, directory, command)
    }

    /// Starts a command like [`Process::start`], which reads what [`Process::write`] writes.
    ///
    /// # Errors
    /// As [`Process::start`].
    pub fn start_with_input(name: &str, directory: &Path, mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped());
        Self::run(name, directory, command)
    }

    /// Writes to the standard input of a program that reads it.
    ///
    /// # Errors
    /// When it does not read, or has ended.
    pub fn write(&self, text: &str) -> Result<()> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let input = child.stdin.as_mut();
        let input = input.with_context(|| format!("{} reads no input", self.name))?;
        Ok(input.write_all(text.as_bytes())?)
    }

    fn run(name: &str, directory: &Path, mut command: Command) -> Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stdout(file.try_clone()?).stderr(file);
        let child = spawn(command).with_context(|| format!("cannot start {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            child: Mutex::new(child),
            log,
        })
    }

    #[must_use]
    pub fn id(&self) -> u32 {
        self.child
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .id()
    }

    /// Returns the CPU time that all its threads have used so far.
    ///
    /// # Errors
    /// When it has ended.
    pub fn cpu(&self) -> Result<Duration> {
        const TICK: Duration = Duration::from_millis(10); // USER_HZ
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id()))?;
        // The name may contain anything, so the fields behind it are parsed. 14 and 15 are user
        // and system time.
        let (_, fields) = stat.rsplit_once(')').context("no name in stat")?;
        let ticks = fields.split_whitespace().skip(11).take(2);
        let ticks = ticks.map(str::parse::<u32>).sum::<Result<u32, _>>()?;
        Ok(TICK * ticks)
    }

    /// Returns all output so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read(&self.log).map_or_else(
            |error| format!("({}: {error})", self.log.display()),
            |bytes| String::from_utf8_lossy(&bytes).into_owned(),
        )
    }

    /// Waits like [`wait_until`], but fails at once when the program ends.
    /// The error shows the end of its log.
    ///
    /// # Errors
    /// When the program ends or the deadline passes.
    pub fn wait_until<T>(
        &self,
        what: &str,
        limit: Duration,
        mut probe: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let answer = wait_until(what, limit, || match self.check_running() {
            Ok(()) => Ok(probe()?.map(Ok)),
            Err(ended) => Ok(Some(Err(ended))),
        });
        answer
            .and_then(|answer| answer)
            .map_err(|error| error.context(self.tail()))
    }

    /// Checks that the program still runs.
    ///
    /// # Errors
    /// When it has ended, with its exit status.
    pub fn check_running(&self) -> Result<()> {
        let status = self
            .child
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .try_wait()?;
        match status {
            None => Ok(()),
            Some(status) => bail!("{} has ended: {status}", self.name),
        }
    }

    /// Sends SIGTERM and waits for the exit status.
    ///
    /// # Errors
    /// When it still runs after `limit`.
    pub fn terminate(&self, limit: Duration) -> Result<std::process::ExitStatus> {
        let id = self.id().to_string();
        let sent = Command::new("kill").args(["-s", "TERM", &id]).status();
        sent.context("cannot run kill")?;
        self.ended(limit)
    }

    /// Waits for the exit status.
    ///
    /// # Errors
    /// When it still runs after `limit`.
    pub fn ended(&self, limit: Duration) -> Result<std::process::ExitStatus> {
        wait_until(&format!("{} to end", self.name), limit, || {
            Ok(self
                .child
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .try_wait()?)
        })
    }

    /// Kills the program, and waits until its children have ended, which the kernel kills a little
    /// later: until then they keep their ports and files.
    ///
    /// # Errors
    /// When a child does not end.
    pub fn kill_with_children(self) -> Result<()> {
        let id = self.id();
        // None, if it has ended already.
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let children = children.unwrap_or_default();
        let name = self.name.clone();
        drop(self);
        let runs = |id: &str| {
            let stat = fs::read_to_string(format!("/proc/{id}/stat"));
            let state = stat.ok().and_then(|stat| {
                let (_, state) = stat.rsplit_once(") ")?;
                state.chars().next()
            });
            state.is_some_and(|state| !"ZX".contains(state))
        };
        wait_until(&format!("the children of {name} to end"), END, || {
            Ok((!children.split_whitespace().any(runs)).then_some(()))
        })
    }

    /// Returns the end of the log, formatted for an error message.
    fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let end = &lines[lines.len().saturating_sub(TAIL)..];
        format!(
            "the end of {}'s log:\n    | {}\n",
            self.name,
            end.join("\n    | ")
        )
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        // An error means that it has ended already.
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Runs a command with `input` on its standard input and waits until it ends.
pub(crate) fn feed(command: &mut Command, input: &str) -> Result<Output> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let stdin = child.stdin.take();
    thread::scope(|scope| {
        scope.spawn(move || {
            if let Some(mut stdin) = stdin {
                // The program need not read all of it.
                let _ = stdin.write_all(input.as_bytes());
            }
        });
        Ok(child.wait_with_output()?)
    })
}

/// Spawns the command on one thread that lives as long as the process: the kernel's death signal
/// is tied to the spawning *thread*, and the threads of tests end early.
fn spawn(command: Command) -> Result<Child> {
    type Order = (Command, mpsc::SyncSender<io::Result<Child>>);
    static SPAWNER: LazyLock<mpsc::Sender<Order>> = LazyLock::new(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        // Without the thread, the channel is closed, and each spawn returns an error.
        let _ = thread::Builder::new()
            .name("spawner".to_owned())
            .spawn(move || {
                for (mut command, reply) in inbox {
                    let _ = reply.send(command.spawn());
                }
            });
        orders
    });
    let (reply, answer) = mpsc::sync_channel(1);
    let gone = |_| anyhow!("the spawner thread is gone");
    SPAWNER
        .send((command, reply))
        .map_err(|_| anyhow!("the spawner thread is gone"))?;
    Ok(answer.recv().map_err(gone)??)
}
