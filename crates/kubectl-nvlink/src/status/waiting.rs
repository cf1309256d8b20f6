//! The rows of jobs that wait: in the queue, and elsewhere. Pure.

use nvlink_admission::decide::elsewhere;
use nvlink_planner::{Action, Deadline, Job, Millis, Name};
use nvlink_queue::{
    Life,
    notice::{About, Notice, REFUSED, UNACCEPTED},
    on_timeout,
};
use serde::Serialize;

use super::{
    explain::DeadlineRow,
    state::{Pod, State},
    words,
};

/// A job that waits.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueRow {
    /// Its position among the jobs of its class, from 1; absent if it starts now, or if no pod shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    pub namespace: String,
    /// Its first pod.
    pub pod: String,
    /// Number of its pods that wait.
    pub pods: usize,
    pub project: String,
    pub class: String,
    /// GPUs of all its pods.
    pub gpus: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_seconds: Option<i64>,
    /// When it is expected to start; absent if that is not known, or if it is rejected before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta: Option<EtaRow>,
    /// When its waiting ends, and what happens then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<DeadlineRow>,
    /// Why it waits, in one word.
    pub reason: String,
    /// Why it waits, as a sentence.
    pub message: String,
}

/// When a job is expected to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EtaRow {
    pub expected: String,
    /// When it starts at the latest, by the upper estimates of those before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest: Option<String>,
    /// Whether it may only become later: jobs ahead of it have no place yet.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub at_least: bool,
    #[serde(skip)]
    pub(super) at: Millis,
    #[serde(skip)]
    pub(super) upper: Option<Millis>,
}

impl QueueRow {
    /// Returns for a table in how long it starts or, if that is not known or later, fails.
    pub(super) fn starts(&self, now: Millis) -> String {
        match (&self.eta, &self.deadline) {
            (Some(eta), _) => {
                let least = if eta.at_least { ">" } else { "" };
                format!("{least}{}", words::span(eta.at - now))
            }
            (None, Some(end)) if end.then == "Reject" && self.position.is_some() => {
                format!("fails {}", words::span(end.millis - now))
            }
            _ => "-".to_owned(),
        }
    }
}

impl EtaRow {
    pub(super) fn new(at: Millis, upper: Option<Millis>, at_least: bool) -> Self {
        let upper = upper.filter(|&upper| upper > at && !at_least);
        Self {
            expected: words::stamp(at),
            latest: upper.map(words::stamp),
            at_least,
            at,
            upper,
        }
    }
}

/// A pod with GPUs that waits, but not in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ElsewhereRow {
    pub namespace: String,
    pub pod: String,
    pub project: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    pub gpus: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_seconds: Option<i64>,
    /// For whom or what it waits.
    pub waits: String,
}

impl State<'_> {
    /// Returns the jobs that wait, in the order of the queue; `None` if no pods could be read.
    pub(super) fn rows(&self) -> Option<Vec<QueueRow>> {
        self.objects.pods.known()?;
        Some(match &self.plan {
            Some(_) => self.planned_rows(),
            None => self.told_rows(),
        })
    }

    fn planned_rows(&self) -> Vec<QueueRow> {
        let Some(plan) = &self.plan else {
            return Vec::new();
        };
        let now = plan.round.actions.iter().filter_map(|action| {
            let (job, reason, message) = match action {
                Action::Release(release) => {
                    let message = format!("its GPUs are free: {}", words::why(&release.why));
                    (&release.job, "Starting", message)
                }
                Action::Reject(reject) => {
                    let message = "its time in the queue is over".to_owned();
                    (&reject.job, "Timeout", message)
                }
                Action::GiveBack(_) => return None,
            };
            let waiting = plan.planner.waiting(job)?;
            let (reason, message) = match self.refused(waiting) {
                Some(why) if reason == "Starting" => (REFUSED, why.to_owned()),
                _ => (reason, message),
            };
            let row = self.job_row(job, waiting);
            Some(QueueRow {
                reason: reason.to_owned(),
                message,
                ..row
            })
        });
        let waiting = plan.round.waiting.iter().filter_map(|one| {
            let job = plan.planner.waiting(&one.job)?;
            let eta = one
                .promise()
                .map(|eta| EtaRow::new(eta.mean, Some(eta.upper), eta.at_least));
            let (reason, message, eta) = match self.refused(job) {
                Some(why) => (REFUSED, why.to_owned(), None),
                None => (plan.word(one), plan.why(one, job), eta),
            };
            Some(QueueRow {
                position: Some(one.class_position),
                eta,
                reason: reason.to_owned(),
                message,
                ..self.job_row(&one.job, job)
            })
        });
        // The planner does not know them.
        let unaccepted = plan.feed.unaccepted();
        let unaccepted = unaccepted.filter_map(|one| Some(self.told_row(self.pods.get(one.pod)?)));
        now.chain(waiting).chain(unaccepted).collect()
    }

    /// Returns the pods with GPUs that wait, but not in the queue, by namespace and name.
    pub(super) fn elsewhere(&self) -> impl Iterator<Item = ElsewhereRow> {
        let waits = |pod: &&Pod<'_>| {
            let unbound = matches!(pod.life, Life::Gated { .. } | Life::Released);
            unbound && pod.gpus > 0 && pod.placement().is_none()
        };
        self.pods.values().filter(waits).filter_map(|pod| {
            Some(ElsewhereRow {
                namespace: pod.namespace.clone(),
                pod: pod.name.clone(),
                project: pod.project.clone(),
                class: pod.class().map(str::to_owned),
                gpus: pod.gpus,
                waited_seconds: self.waited(pod),
                waits: elsewhere(pod.value)?,
            })
        })
    }

    /// Returns how long ago a pod was created, seconds.
    fn waited(&self, pod: &Pod<'_>) -> Option<i64> {
        let created = pod.created;
        created.map(|created| (self.now - created).max(0) / 1000)
    }

    /// Returns the row of a job, without what the planner says about it.
    fn job_row(&self, id: &Name, job: &Job) -> QueueRow {
        let first = job
            .members
            .iter()
            .map(|member| &member.pod)
            .min()
            .unwrap_or(id);
        let (namespace, pod) = first.split_once('/').unwrap_or(("", first));
        QueueRow {
            position: None,
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            pods: job.members.len(),
            project: job.project.to_string(),
            class: job.class.to_string(),
            gpus: job.members.iter().map(|member| member.gpus).sum(),
            waited_seconds: Some((self.now - job.created).max(0) / 1000),
            eta: None,
            deadline: job.deadline.map(DeadlineRow::from),
            reason: String::new(),
            message: String::new(),
        }
    }

    /// Returns the pods that wait, as the queue's leader described them.
    fn told_rows(&self) -> Vec<QueueRow> {
        let waiting = self
            .pods
            .values()
            .filter(|pod| matches!(pod.life, Life::Waiting { .. }));
        let mut rows: Vec<QueueRow> = waiting.map(|pod| self.told_row(pod)).collect();
        rows.sort_by(|a, b| {
            let order = |row: &QueueRow| {
                (
                    row.position.unwrap_or(u32::MAX),
                    -row.waited_seconds.unwrap_or(0),
                )
            };
            (order(a), &a.namespace, &a.pod).cmp(&(order(b), &b.namespace, &b.pod))
        });
        rows
    }

    /// Returns when the waiting of a pod ends, as its class says.
    fn told_deadline(&self, pod: &Pod<'_>) -> Option<DeadlineRow> {
        let member = pod.member.as_ref()?;
        let queue = self.class(&member.class)?.queue.as_ref()?;
        let timeout = Millis::try_from(member.timeout?.as_millis()).unwrap_or(Millis::MAX);
        let deadline = Deadline {
            at: pod.created?.saturating_add(timeout),
            then: on_timeout(queue.on_timeout),
        };
        Some(deadline.into())
    }

    /// Returns a pod that waits, as the queue's leader described it. That its class cannot be used is
    /// known also where no leader has said so.
    pub(super) fn told_row(&self, pod: &Pod<'_>) -> QueueRow {
        let told = pod.told("reason").and_then(|text| text.split_once(": "));
        let (reason, message) = told.unwrap_or(("-", "the queue has not said yet why it waits"));
        let class = pod.class().unwrap_or_default();
        let broken = self
            .classes
            .get(class)
            .and_then(|class| class.as_ref().err());
        let why = broken.map(|why| Notice::unaccepted(why).why(About::of(class)));
        let (reason, message) = match &why {
            Some(why) => (UNACCEPTED, why.as_str()),
            None => (reason, message),
        };
        let eta = pod
            .told("eta")
            .and_then(|eta| eta.parse::<k8s_openapi::jiff::Timestamp>().ok());
        QueueRow {
            position: pod
                .told("position")
                .and_then(|position| position.parse().ok())
                .filter(|_| why.is_none()),
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            pods: 1,
            project: pod.project.clone(),
            class: class.to_owned(),
            gpus: pod.gpus,
            waited_seconds: self.waited(pod),
            eta: eta
                .filter(|_| why.is_none())
                .map(|eta| EtaRow::new(eta.as_millisecond(), None, false)),
            deadline: self.told_deadline(pod),
            reason: reason.to_owned(),
            message: message.to_owned(),
        }
    }
}
