//! `status --watch`: the report again whenever the cluster changes.

use std::{
    collections::HashSet,
    io::{self, IsTerminal, Write},
    process::ExitCode,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use kube::{Client, api::DynamicObject, core::ApiResource, runtime::watcher};
use nvlink_api::node_topology;
use nvlink_runtime::watch::{self, Key, Mirror};
use tokio::{sync::Notify, time::timeout};

use super::{
    objects::{Kind, Objects, key},
    read,
};

/// The pause after a change: what belongs together comes together.
const PAUSE: Duration = Duration::from_millis(500);
/// How often a terminal is drawn again although nothing changed: times go on.
const TICK: Duration = Duration::from_secs(10);

/// The objects, which watches keep current.
#[derive(Clone)]
struct Current {
    objects: Arc<Mutex<Objects>>,
    changed: Arc<Notify>,
}

impl Current {
    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The objects of one kind.
struct Watched {
    current: Current,
    kind: fn(&mut Objects) -> &mut Kind,
}

impl Mirror for Watched {
    type Object = DynamicObject;
    const KIND: &'static str = "objects";
    const UNKNOWN: &'static str = "";

    fn set(&mut self, object: DynamicObject) {
        let named = (
            object.metadata.namespace.clone(),
            object.metadata.name.clone(),
        );
        let gone = (named.0.unwrap_or_default(), named.1.unwrap_or_default());
        let kept = read::slim(object);
        let mut objects = self.current.objects();
        let all = &mut (self.kind)(&mut objects).objects;
        let before = match kept {
            Some(kept) => {
                let same = all.get(&gone) == Some(&kept);
                all.insert(key(&kept), kept);
                same
            }
            None => all.remove(&gone).is_none(),
        };
        if !before {
            self.current.changed.notify_one();
        }
    }

    fn remove(&mut self, key: &Key) {
        (self.kind)(&mut self.current.objects()).objects.remove(key);
        self.current.changed.notify_one();
    }

    fn retain(&mut self, keys: &HashSet<Key>) {
        let mut objects = self.current.objects();
        let all = &mut (self.kind)(&mut objects).objects;
        let before = all.len();
        all.retain(|key, _| keys.contains(key));
        if all.len() != before {
            self.current.changed.notify_one();
        }
    }
}

/// Prints the report of `objects`, and again when it changes: in place on a terminal, one block
/// after the other elsewhere. Ends when nobody reads the output.
///
/// # Errors
/// When the report cannot be made or printed.
pub(super) async fn follow(
    client: &Client,
    objects: Objects,
    render: impl Fn(&Objects) -> anyhow::Result<String>,
) -> anyhow::Result<ExitCode> {
    let current = Current {
        objects: Arc::new(Mutex::new(objects)),
        changed: Arc::new(Notify::new()),
    };
    start(client, &current);
    let terminal = io::stdout().is_terminal();
    let (mut last, mut looked) = (String::new(), Instant::now());
    loop {
        let seen = current.objects().clone();
        let text = render(&seen)?;
        if text != last {
            if let Err(error) = draw(&text, terminal, last.is_empty()) {
                return match error.kind() {
                    io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
                    _ => Err(error.into()),
                };
            }
            last = text;
        }
        if terminal {
            drop(timeout(TICK, current.changed.notified()).await);
        } else {
            current.changed.notified().await;
        }
        tokio::time::sleep(PAUSE).await;
        let mut objects = current.objects().clone();
        read::owners(client, &mut objects).await;
        if looked.elapsed() >= TICK {
            objects.leases = read::leases(client).await;
            looked = Instant::now();
        }
        let mut now = current.objects();
        (now.owners, now.leases) = (objects.owners, objects.leases);
    }
}

/// A kind that may be watched: its resource, where its objects are kept, and its only namespace.
type Watch<'a> = (ApiResource, fn(&mut Objects) -> &mut Kind, Option<&'a str>);

/// Starts a watch of each kind that could be read.
fn start(client: &Client, current: &Current) {
    let mut objects = current.objects();
    let only = objects.namespace.clone();
    let kinds: [Watch<'_>; 7] = [
        (read::classes(), |all| &mut all.classes, None),
        (node_topology::resource(), |all| &mut all.topologies, None),
        (read::nodes(), |all| &mut all.nodes, None),
        (
            ApiResource::erase::<ResourceSlice>(&()),
            |all| &mut all.slices,
            None,
        ),
        (
            ApiResource::erase::<ResourceClaim>(&()),
            |all| &mut all.claims,
            None,
        ),
        (
            ApiResource::erase::<DeviceClass>(&()),
            |all| &mut all.device_classes,
            None,
        ),
        (read::pods(), |all| &mut all.pods, only.as_deref()),
    ];
    for (resource, kind, namespace) in kinds {
        if kind(&mut objects).hidden.is_some() {
            continue;
        }
        let watched = Watched {
            current: current.clone(),
            kind,
        };
        let api = read::api(client, &resource, namespace);
        // A NodeTopology has 20 KiB.
        let config = watcher::Config::default().page_size(100);
        tokio::spawn(watch::follow(api, config, watched));
    }
}

/// Prints a report. `first` is the one before which there is none.
fn draw(text: &str, terminal: bool, first: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if !terminal {
        let gap = if first { "" } else { "\n" };
        write!(out, "{gap}{text}")?;
        return out.flush();
    }
    let height = terminal_size::terminal_size().map_or(24, |(_, height)| usize::from(height.0));
    let lines: Vec<&str> = text.lines().take(height.saturating_sub(1).max(1)).collect();
    // Home, then each line up to its end, then the rest of the screen: nothing flickers.
    write!(out, "\x1b[H{}\x1b[K\n\x1b[J", lines.join("\x1b[K\n"))?;
    out.flush()
}
