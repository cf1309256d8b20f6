//! The jobs that wait in the queue, as their pods show it: whichever replica answers, it says
//! the same. A list of limited length, however many pods wait.

use std::{collections::BTreeMap, fmt::Write, sync::Arc};

use k8s_openapi::jiff::Timestamp;
use nvlink_cluster::mirror::{Pod, State, pod::Queued};
use nvlink_queue::{notice::STUCK, words::IMPOSSIBLE};
use nvlink_runtime::page::escape;
use nvlink_runtime::words::count;
use serde_json::{Value, json};

use super::find::{self, Query};

/// The most jobs that are listed: the search finds the others.
const LISTED: usize = 100;
/// The most classes that the sum names.
const NAMED: usize = 8;

/// The head of the table. On a narrow screen, a job is a block of lines and not a row: the roles keep
/// it a table for screen readers.
const HEAD: &str = "<div class=\"scroll\"><table role=\"table\"><thead role=\"rowgroup\"><tr role=\"row\">\
     <th role=\"columnheader\">Pod</th><th role=\"columnheader\">Class</th>\
     <th role=\"columnheader\">Position in class</th><th role=\"columnheader\">Project</th>\
     <th role=\"columnheader\">GPUs</th><th role=\"columnheader\">Expected start</th>\
     <th role=\"columnheader\">Since</th><th role=\"columnheader\">Why</th></tr></thead>\
     <tbody role=\"rowgroup\">\n";

/// The pods that wait.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// In the order of their positions, the pods of a job beside each other.
    pods: Vec<Waiting>,
    /// By class, the number of its pods that wait, and of the GPUs that they need.
    classes: BTreeMap<String, Need>,
    /// By reason, the jobs that do not start unless somebody does something: a pod of each, in the order of
    /// their positions.
    stuck: BTreeMap<String, Vec<String>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Need {
    pods: usize,
    gpus: u64,
}

/// A pod that waits.
#[derive(Debug)]
struct Waiting {
    namespace: String,
    name: String,
    pod: Arc<Pod>,
}

/// A job that waits.
struct Job<'a> {
    pods: &'a [Waiting],
    /// The one by which it was found.
    shown: &'a Waiting,
    queued: &'a Queued,
}

/// What a reader sees of the queue.
struct List<'a> {
    /// The first jobs that the query finds.
    jobs: Vec<Job<'a>>,
    /// How many more it finds.
    more: usize,
}

impl Queue {
    /// Returns the pods of `state` that wait.
    pub(super) fn new(state: &State) -> Self {
        let mut this = Self::default();
        for ((namespace, name), pod) in &state.pods {
            if pod.waits().is_none() {
                continue;
            }
            let class = pod.class.clone().unwrap_or_default();
            let need = this.classes.entry(class).or_default();
            need.pods += 1;
            need.gpus += u64::from(pod.gpus);
            this.pods.push(Waiting {
                namespace: namespace.clone(),
                name: name.clone(),
                pod: Arc::clone(pod),
            });
        }
        this.pods
            .sort_unstable_by(|a, b| (a.job(), &a.name).cmp(&(b.job(), &b.name)));
        for pods in this.pods.chunk_by(|a, b| a.job() == b.job()) {
            let stuck = pods.iter().find_map(|one| {
                let queued = one.pod.waits().filter(|queued| is_stuck(queued))?;
                Some((queued.reason.clone(), one.title()))
            });
            if let Some((reason, title)) = stuck {
                this.stuck.entry(reason).or_default().push(title);
            }
        }
        this
    }

    /// Returns by reason (a word, a colon and a sentence) the jobs that do not start unless somebody
    /// does something: `NAMESPACE/NAME` of a pod of each.
    pub(super) fn stuck(&self) -> &BTreeMap<String, Vec<String>> {
        &self.stuck
    }

    /// Renders what the query finds.
    pub(super) fn html(&self, query: &Query) -> String {
        if self.pods.is_empty() {
            return "<p class=\"soft\">No pod shows that it waits.</p>\n".to_owned();
        }
        let list = self.list(query);
        let mut html = format!("<p class=\"soft\">{}</p>\n", escape(&self.sum()));
        if list.jobs.is_empty() {
            return html + "<p class=\"soft\">The search finds none of them.</p>\n";
        }
        html += HEAD;
        list.jobs.iter().for_each(|job| html += &job.html());
        html += "</tbody></table></div>\n";
        if list.more > 0 {
            let more = count(list.more, "job");
            let _ = writeln!(
                html,
                "<p class=\"soft\">{more} more; the search finds them.</p>"
            );
        }
        html
    }

    /// Returns the queue as JSON. Keys that do not apply are absent.
    pub(super) fn json(&self) -> Value {
        let list = self.list(&Query::default());
        let class = |(class, need): (&String, &Need)| json!({"class": class, "pods": need.pods, "gpus": need.gpus});
        json!({
            "classes": self.classes.iter().map(class).collect::<Value>(),
            "jobs": list.jobs.iter().map(Job::json).collect::<Value>(),
            "moreJobs": list.more,
        })
    }

    /// Returns the jobs of which the query finds a pod.
    fn list(&self, query: &Query) -> List<'_> {
        let matches = |one: &&Waiting| query.is_empty() || query.matches(&one.find());
        let jobs = self.pods.chunk_by(|a, b| a.job() == b.job());
        let mut found = jobs.filter_map(|pods| {
            let shown = pods.iter().find(matches)?;
            let queued = shown.pod.waits()?;
            Some(Job {
                pods,
                shown,
                queued,
            })
        });
        List {
            jobs: found.by_ref().take(LISTED).collect(),
            more: found.count(),
        }
    }

    /// Says how many pods wait, for how many GPUs of which class.
    fn sum(&self) -> String {
        let gpus: u64 = self.classes.values().map(|need| need.gpus).sum();
        let mut largest: Vec<_> = self.classes.iter().collect();
        largest.sort_by_key(|(_, need)| std::cmp::Reverse(need.pods));
        let class = |(class, need): &(&String, &Need)| {
            let gpus = gpu_count(need.gpus);
            format!("{} in class {class} ({gpus})", need.pods)
        };
        let named: Vec<_> = largest.iter().take(NAMED).map(class).collect();
        let more = match largest.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more classes"),
        };
        let verb = if self.pods.len() == 1 {
            "waits"
        } else {
            "wait"
        };
        format!(
            "{} {verb} for {}: {}{more}. As the pods show it, in UTC.",
            count(self.pods.len(), "pod"),
            gpu_count(gpus),
            named.join(", ")
        )
    }
}

impl Waiting {
    /// Returns what the pods of one job have in common, beginning with its position.
    fn job(&self) -> (u32, Option<&str>, &str, Option<&str>) {
        let queued = self.pod.waits();
        let position = queued.and_then(|queued| queued.position);
        // A pod without an owner is a job of its own.
        let owner = queued.and_then(|queued| queued.owner.as_deref());
        (
            position.unwrap_or(u32::MAX),
            self.pod.class.as_deref(),
            &self.namespace,
            owner.or(Some(&self.name)),
        )
    }

    fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    fn find(&self) -> String {
        find::of_waiting(&self.namespace, &self.name, &self.pod)
    }
}

/// Reports whether a job does not start unless somebody does something.
pub(super) fn is_stuck(queued: &Queued) -> bool {
    STUCK.contains(&queued.word())
}

/// Renders a cell, with the title of its column for a narrow screen.
fn cell(class: &str, label: &str, html: &str) -> String {
    let class = match class {
        "" => String::new(),
        class => format!(" class=\"{class}\""),
    };
    let label = match label {
        "" => String::new(),
        label => format!(" data-label=\"{label}\""),
    };
    format!("<td role=\"cell\"{class}{label}>{html}</td>")
}

fn gpu_count(gpus: u64) -> String {
    count(usize::try_from(gpus).unwrap_or(usize::MAX), "GPU")
}

impl Job<'_> {
    /// Returns the number of GPUs of all its pods.
    fn gpus(&self) -> u64 {
        self.pods.iter().map(|one| u64::from(one.pod.gpus)).sum()
    }

    fn html(&self) -> String {
        let (one, queued) = (self.shown, self.queued);
        let others = match self.pods.len() {
            ..=1 => String::new(),
            pods => format!(" and {} more", pods - 1),
        };
        let text = |text: Option<&String>| escape(text.map_or("", String::as_str));
        let position = queued.position.map(|position| position.to_string());
        let position = position.unwrap_or_else(|| "none".to_owned());
        let cells = [
            (
                "pod",
                "",
                format!("<b>{}</b>{others}", escape(&one.title())),
            ),
            ("", "Class", text(one.pod.class.as_ref())),
            ("", "Position in class", position),
            ("", "Project", text(one.pod.project.as_ref())),
            ("", "GPUs", self.gpus().to_string()),
            ("start", "Expected start", self.start()),
            ("", "Since", queued.since.map_or_else(String::new, time)),
            ("reason", "Why", escape(queued.sentence())),
        ];
        let cells = cells
            .iter()
            .map(|(class, label, text)| cell(class, label, text));
        format!(
            "<tr role=\"row\" data-find=\"{}\">{}</tr>\n",
            escape(&one.find()),
            cells.collect::<String>()
        )
    }

    fn start(&self) -> String {
        match self.queued.eta {
            Some(eta) => time(eta),
            None if self.queued.word() == IMPOSSIBLE => "never".to_owned(),
            None => "not known".to_owned(),
        }
    }

    fn json(&self) -> Value {
        let (one, queued) = (self.shown, self.queued);
        let mut value = json!({
            "namespace": one.namespace, "pod": one.name, "pods": self.pods.len(), "gpus": self.gpus(),
            "reason": queued.word(), "message": queued.sentence(),
        });
        let optional = [
            ("position", queued.position.map(Value::from)),
            ("class", one.pod.class.clone().map(Value::from)),
            ("project", one.pod.project.clone().map(Value::from)),
            ("eta", queued.eta.map(|at| stamp(at).into())),
            ("since", queued.since.map(|at| stamp(at).into())),
        ];
        for (key, one) in optional {
            if let Some(one) = one {
                value[key] = one;
            }
        }
        value
    }
}

fn stamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn time(at: Timestamp) -> String {
    let shown = at.strftime("%Y-%m-%d %H:%M:%S");
    format!("<time datetime=\"{}\">{shown}</time>", stamp(at))
}
