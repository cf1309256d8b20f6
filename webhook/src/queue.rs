//! What the queue reads from pods, and from the objects that own them. All of it is pure: JSON
//! goes in, values come out.
//!
//! - [`life`]: whether a pod waits, is released, runs or has ended;
//! - [`operator`]: the labels of operators, and the objects that know how many pods a job has;
//! - [`gang`]: the gang of a pod, its rank in it, and whether the members agree;
//! - [`limits`]: how long a pod may run, and how long it probably will;
//! - [`past`]: how long the same job ran before;
//! - [`job`]: the name by which a job is known again;
//! - [`member`]: all of that about one pod.

pub mod gang;
pub mod job;
pub mod life;
pub mod limits;
pub mod member;
pub mod operator;
pub mod past;
mod sizes;

pub use gang::{Assembly, Doubt, Gang, assemble};
pub use life::Life;
pub use limits::{Estimate, Limits, Source};
pub use member::{Member, Unreadable, read};
pub use operator::{OBJECTS, Object, object};
pub use past::{Key, Past, Spread};
