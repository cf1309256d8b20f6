//! What a round says, in words.

use nvlink_planner::{Reason, Why};

/// Returns why a job started then and there.
pub(crate) fn why(why: &Why) -> String {
    match why {
        Why::Turn => "it was its turn".to_owned(),
        Why::Backfill { ahead } => {
            format!("it overtook {ahead} waiting job(s) on GPUs that they do not need")
        }
        Why::Worse { wait, longer, .. } => format!(
            "a better placement would have come in {}, but would have saved only {}",
            seconds(*wait),
            seconds(*longer)
        ),
        Why::Rejoin => "it took the place of an earlier pod of its gang".to_owned(),
        Why::Spread { .. } => {
            "it waited as long as its class lets it wait, so its GPUs need not share a domain"
                .to_owned()
        }
    }
}

/// Returns why a job waits.
pub(crate) fn reason(reason: &Reason) -> String {
    match reason {
        Reason::Incomplete => {
            "not all pods of its gang exist and are free of other scheduling gates".to_owned()
        }
        Reason::Never => "no node of its class can ever hold it".to_owned(),
        Reason::Silent => "the nodes that could hold it do not report their GPUs".to_owned(),
        Reason::Quota { held, most } => {
            format!("its project holds {held} of the {most} GPUs of the class that it may hold")
        }
        Reason::Full { asked, free } => format!(
            "it needs {asked} GPUs, and at most {free} are free on nodes that its scope allows"
        ),
        Reason::Fragmented { asked, free } => format!(
            "it needs {asked} GPUs close together, and the {free} GPUs that are free on one node are not"
        ),
        Reason::Behind { ahead } => {
            format!("{ahead} job(s) ahead of it need the GPUs that are free")
        }
        Reason::Better { longer } => format!(
            "a better placement is worth the wait: it would run {} longer now",
            seconds(*longer)
        ),
    }
}

fn seconds(millis: i64) -> String {
    format!("{}s", millis / 1000)
}
