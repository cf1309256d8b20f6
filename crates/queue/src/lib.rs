//! The queue: pods of a class wait behind a scheduling gate until their GPUs are free.
//!
//! What it reads from pods, and from the objects that own them. All of it is pure: JSON goes in,
//! values come out.
//!
//! - `life`: whether a pod waits, is released, runs or has ended;
//! - `operator`: the labels of operators, and the objects that know how many pods a job has;
//! - `sizes`: how many pods a job has, by its object;
//! - `gang`: the gang of a pod, and its rank in it;
//! - `job`: the name by which a job is known again;
//! - `past`: how long the same job ran before;
//! - `limits`: how long a pod may run, and how long it probably will;
//! - [`placement`]: the annotation by which a later leader knows what an earlier one did;
//! - [`member`]: all of that about one pod;
//! - `assembly`: the members of a gang, and whether they agree;
//! - [`claim`]: the ResourceClaim by which a pod gets its GPUs;
//! - [`channel`]: the ComputeDomain of a gang, and the claims by which its pods get IMEX channels.
//!
//! What the leader computes, of which `kubectl nvlink` uses parts. All of it is pure, too:
//!
//! - [`words`]: what a round says, in words;
//! - [`notice`]: what waiting pods show, and when a reader would notice a change;
//! - `prune`: what the queue keeps of a pod;
//! - `writes`: what is written into pods, as JSON patches;
//! - [`outcome`]: a placement compared with the GPUs that the pod got;
//! - [`feed`]: the objects of the cluster as changes of the planner (crate `nvlink_planner`);
//! - [`board`]: which pods show something new next;
//! - [`review`]: which pods were placed otherwise, and say so next;
//! - [`metrics`]: the metrics of the queue;
//! - `tally`: how many pods wait.
//!
//! What the leader does:
//!
//! - `events`: the watches of the objects;
//! - [`owners`]: the objects that say how many pods a job has, requested;
//! - `placeholders`: pods that request nodes of autoscalers;
//! - `clock`: the time by which pods wait;
//! - `idle`: whether there is anything to do;
//! - `post`: writes what pods show;
//! - `apart`: tells people of pods that nothing keeps together, whether or not they wait;
//! - `attempts`: the attempts of one write, and what the log says of one that nobody answers;
//! - `needs`: what pods name and the scheduler waits for;
//! - `claims`: creates the claims of pods;
//! - `channels`: makes the ComputeDomain of a gang;
//! - `execute`: carries out what a round of the planner says;
//! - `failpoint`: ends a debug build between two writes, for tests;
//! - [`controller`]: the loop over rounds, while this process leads.

mod apart;
mod assembly;
mod attempts;
pub mod board;
pub mod channel;
mod channels;
pub mod claim;
mod claims;
mod clock;
pub mod controller;
mod events;
mod execute;
mod failpoint;
pub mod feed;
mod gang;
mod idle;
mod job;
mod life;
mod limits;
pub mod member;
pub mod metrics;
mod needs;
pub mod notice;
mod operator;
pub mod outcome;
pub mod owners;
mod past;
mod placeholders;
pub mod placement;
mod post;
mod prune;
pub mod review;
mod rules;
mod sizes;
mod tally;
pub mod words;
mod writes;

pub use assembly::{Assembly, assemble};
pub use gang::size as gang_size;
pub use gang::{Doubt, Gang};
pub use life::{Life, created};
pub use limits::{Estimate, Limits, Source};
pub use member::{Member, Unreadable, read};
pub use operator::{OBJECTS, Object, object};
pub use past::{Key, Past, Spread, Worth};
pub use placement::Placement;
pub use rules::{on_timeout, rules};
