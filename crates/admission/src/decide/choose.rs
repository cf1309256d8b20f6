//! The choice of a pod's class.

use std::sync::Arc;

use nvlink_api::{
    class::{Class, GPU},
    crd::environment::Mnnvl,
    pod,
};
use nvlink_topology::{Pattern, Scope, labels};

use super::{
    By, Chosen, Facts, Gating, Intent, claim, environment, guard, identity, project,
    refusal::{Refusal, Rule},
};
use crate::{
    authorize::{Grant, Grants},
    view::View,
};

/// The most restricted classes whose right is checked for one pod. After so many refusals, further
/// classes are treated as not granted.
const MAX_QUESTIONS: usize = 16;

/// The result of the choice.
#[derive(Debug)]
pub enum Choice {
    /// The pod gets no class; with warnings for the user.
    Leave(Vec<String>),
    /// The pod gets no class, and must not see GPUs that it does not hold: it targets the nodes of
    /// this restricted class without naming it, or uses NVIDIA's runtime.
    Shield(Vec<String>, Option<Arc<Class>>),
    /// The subject's right to use this class must be checked first.
    Ask(String),
    /// The pod gets a class.
    Take(Box<Chosen>),
}

/// Chooses the class of a pod. `grants` contains the checked rights to restricted classes; if one
/// is missing, [`Choice::Ask`] is returned.
///
/// # Errors
/// When the pod is refused.
pub fn choose(facts: &Facts<'_>, grants: &Grants, view: &View) -> Result<Choice, Refusal> {
    let Facts {
        pod,
        namespace,
        subject,
        held,
        ..
    } = facts;
    let Some(intent) = &facts.intent else {
        return Ok(Choice::Leave(Vec::new()));
    };
    let case = guard::Case::new(pod, namespace, subject, held, view);
    if let Some(class) = guard::create(case, grants)? {
        return Ok(Choice::Ask(class));
    }
    let reached: Vec<_> = guard::reached(case).collect();
    let chooser = Chooser {
        facts,
        intent,
        grants,
        view,
        reached: &reached,
    };
    let choice = chooser.choice()?;
    let taken = match &choice {
        Choice::Take(chosen) => Some(&*chosen.class),
        _ => None,
    };
    if !matches!(choice, Choice::Ask(_))
        && let Some(class) = guard::past_queue::check(case, taken, grants)?
    {
        return Ok(Choice::Ask(class));
    }
    let Choice::Leave(mut warnings) = choice else {
        return Ok(choice);
    };
    // A pod that already had a class would get it again, so the webhook did not write these labels.
    let keys = [labels::CLASS, labels::PROJECT, labels::GANG];
    identity::refuse(pod, &keys)?;
    if held.gpus {
        warnings.extend(chooser.misspelt(warnings.is_empty()));
    }
    Ok(match reached.first() {
        Some(&class) => Choice::Shield(warnings, Some(Arc::clone(class))),
        None if guard::runs_nvidia(case) => Choice::Shield(warnings, None),
        None => Choice::Leave(warnings),
    })
}

struct Chooser<'a> {
    facts: &'a Facts<'a>,
    intent: &'a Intent,
    grants: &'a Grants,
    view: &'a View,
    /// The restricted classes whose nodes the pod targets.
    reached: &'a [&'a Arc<Class>],
}

impl Chooser<'_> {
    fn choice(&self) -> Result<Choice, Refusal> {
        match (
            &self.intent.class,
            self.view.default_class(self.facts.namespace),
        ) {
            (Some(name), _) => self.named(name, By::Annotation),
            (None, Some(name)) => self.default(name),
            (None, None) => self.claimed(),
        }
    }

    /// Chooses the class that the pod or its namespace names; refuses the pod if it cannot get it.
    fn named(&self, name: &str, by: By) -> Result<Choice, Refusal> {
        let class = match self.view.class(name) {
            Some(Ok(class)) => class,
            Some(Err(reason)) => {
                let message = format!("class {name:?} cannot be used, because {reason}");
                return Err(Refusal::new(Rule::BrokenClass, message).about(name));
            }
            None => return Err(self.unknown(name)),
        };
        let gpus = match pod::request(&self.facts.held.containers, &class.resource) {
            Ok(0) => return Ok(Choice::Leave(self.without_gpus(class, by))),
            Ok(gpus) => gpus,
            Err(error) => return Ok(Choice::Leave(vec![format!("not changed: {error}")])),
        };
        // The guard has already checked the right to a restricted class.
        self.take(class, by, gpus, Vec::new()).map(Choice::Take)
    }

    fn default(&self, name: &str) -> Result<Choice, Refusal> {
        match self.view.class(name) {
            Some(Ok(_)) if self.is_elsewhere(name) => Ok(Choice::Leave(self.unnamed())),
            Some(Ok(_)) => self.named(name, By::Namespace),
            Some(Err(reason)) => Ok(Choice::Leave(vec![format!(
                "not changed: the default class {name:?} of namespace {} cannot be used, because {reason}",
                self.facts.namespace
            )])),
            None => Ok(Choice::Leave(vec![format!(
                "not changed: the default class {name:?} of namespace {} does not exist ({})",
                self.facts.namespace,
                self.known()
            )])),
        }
    }

    /// Chooses the first class that claims the pod and that its subject may use.
    fn claimed(&self) -> Result<Choice, Refusal> {
        // The pod's GPUs and pattern, by resource. Classes use few different resources.
        let mut asked: Vec<(&str, u32, Pattern)> = Vec::new();
        let (mut failed, mut unasked, mut unfit) = (Vec::new(), 0, Vec::new());
        for class in self.view.claiming() {
            let known = asked
                .iter()
                .find(|(resource, ..)| *resource == class.resource);
            let (gpus, pattern) = match known {
                Some(&(_, gpus, pattern)) => (gpus, pattern),
                None => match pod::request(&self.facts.held.containers, &class.resource) {
                    Ok(gpus) => {
                        let pattern = self.facts.evidence.classify(self.intent, gpus).pattern;
                        asked.push((&class.resource, gpus, pattern));
                        (gpus, pattern)
                    }
                    Err(error) => return Ok(Choice::Leave(vec![format!("not changed: {error}")])),
                },
            };
            let claims = gpus > 0 && class.claims(gpus, &pattern) && !self.outgrows(class, gpus);
            if !claims || self.is_elsewhere(&class.name) || self.has_claim_of_another(class) {
                continue;
            }
            if let Some(why) = self.unfit(class, gpus) {
                unfit.push(why);
                continue;
            }
            if class.restricted && !self.is_listed(class) {
                match self.grants.get(&class.name) {
                    None if self.grants.len() < MAX_QUESTIONS => {
                        return Ok(Choice::Ask(class.name.clone()));
                    }
                    Some(Grant::Granted) => {}
                    // The pod did not name the class, so there is nothing to refuse.
                    None => unasked += 1,
                    Some(Grant::Denied) => {}
                    Some(Grant::Failed(_)) => failed.push(class.name.as_str()),
                }
                if self.grants.get(&class.name) != Some(&Grant::Granted) {
                    continue;
                }
            }
            let warnings = [unfit, skipped(&failed, unasked)].concat();
            let chosen = self.take(class, By::AppliesTo, gpus, warnings)?;
            return Ok(Choice::Take(chosen));
        }
        let mut warnings = self.unheard();
        warnings.extend(self.unnamed());
        warnings.extend(unfit);
        warnings.extend(skipped(&failed, unasked));
        Ok(Choice::Leave(warnings))
    }

    /// Reports whether the pod, which names no class, targets the nodes of another restricted class
    /// than `name`. In class `name`, it would count towards a class whose nodes it does not use.
    fn is_elsewhere(&self, name: &str) -> bool {
        self.reached.iter().any(|class| class.name != name)
    }

    /// Reports whether the pod got its claim from another class in an earlier call: the claim says
    /// nothing about the resource of this one.
    fn has_claim_of_another(&self, class: &Class) -> bool {
        let pod = self.facts.pod;
        let own = pod::metadata(pod, "labels", labels::CLASS).and_then(serde_json::Value::as_str);
        claim::is_named(pod) && own.is_some_and(|own| own != class.name)
    }

    /// Returns a warning if the class claims the pod and cannot serve it: it would give the pod its GPUs by
    /// a claim, and cannot, or might take away the work of a job.
    fn unfit(&self, class: &Class, gpus: u32) -> Option<String> {
        let name = &class.name;
        if let Err(refusal) = self.check_checkpoint(class, gpus) {
            return Some(format!(
                "class {name:?}, which claims this pod, was skipped: {refusal}"
            ));
        }
        let why = claim::unfit(
            class,
            self.facts.pod,
            &Gating::of(self.facts.pod, class),
            gpus,
        )?;
        Some(format!(
            "class {name:?}, which claims this pod, was skipped: it gives GPUs by claims of its queue, and {why}"
        ))
    }

    fn unnamed(&self) -> Vec<String> {
        if self.reached.is_empty() || !self.facts.held.gpus {
            return Vec::new();
        }
        let names: Vec<_> = self.reached.iter().map(|class| &*class.name).collect();
        vec![format!(
            "not changed: the pod targets nodes of {} without naming a class, so it gets none: name one in annotation {}",
            names.join(", "),
            labels::CLASS
        )]
    }

    /// Reports whether the scope or the limit of the class itself cannot hold the pod. That is no
    /// reason to refuse a pod that did not request the class.
    fn outgrows(&self, class: &Class, gpus: u32) -> bool {
        gpus >= 2 && self.intent.scope.is_none() && class.scope == Scope::Gpu
            || self.check_limit(class, gpus).is_err()
    }

    fn take(
        &self,
        class: &Arc<Class>,
        by: By,
        gpus: u32,
        mut warnings: Vec<String>,
    ) -> Result<Box<Chosen>, Refusal> {
        warnings.extend(self.intent.unknown.iter().cloned());
        let scope = self.intent.scope.unwrap_or(class.scope);
        let gang_scope = self.intent.gang_scope.unwrap_or(class.gang_scope);
        let about = |refusal: Refusal| refusal.about(&class.name);
        self.check_scope(scope, gpus).map_err(about)?;
        self.check_shape(gpus).map_err(about)?;
        self.check_limit(class, gpus).map_err(about)?;
        self.check_checkpoint(class, gpus).map_err(about)?;
        let classified = self.facts.evidence.classify(self.intent, gpus);
        let (class, intent) = (Arc::clone(class), self.intent.clone());
        let facts = self.facts;
        let spans = intent.gang.is_some() || facts.evidence.spans;
        let pods = intent.gang_size.or(facts.pods).or(facts.evidence.pods);
        // Of other classes, a variable of the pod is its own, whatever its value.
        let managed = class.environment.mnnvl == Some(Mnnvl::Managed);
        let one_node = managed && gang_scope <= Scope::Node;
        let mut chosen = Chosen {
            project: project::of(&class, facts.subject, facts.pod, facts.namespace),
            namespace: facts.namespace.to_owned(),
            gating: Gating::of(facts.pod, &class),
            class,
            by,
            gpus,
            pattern: classified.pattern,
            guess: classified.guess,
            pattern_from: classified.from,
            spans,
            pods: pods.filter(|_| spans),
            over_ssh: facts.evidence.over_ssh,
            minds_channels: spans
                && environment::minds_channels(facts.pod, &facts.held.containers, one_node),
            scope,
            gang_scope,
            intent,
            claim: claim::name(facts.pod, facts.namespace, facts.request),
            may_be_cut: false,
            warnings,
        };
        let domain = chosen.required_domain();
        chosen.may_be_cut = self.view.may_cut(&chosen.class, domain);
        Ok(Box::new(chosen))
    }

    fn check_scope(&self, scope: Scope, gpus: u32) -> Result<(), Refusal> {
        if gpus < 2 || scope != Scope::Gpu {
            return Ok(());
        }
        let source = if self.intent.scope.is_some() {
            "the pod's"
        } else {
            "the class's"
        };
        Err(Refusal::new(
            Rule::Scope,
            format!(
                "{source} scope is gpu, which cannot hold {gpus} GPUs: request one GPU, or set annotation {} to nvlink-domain or node",
                labels::SCOPE
            ),
        ))
    }

    /// Checks that a shape has as many GPUs as the job. A gang without a size is not checked.
    fn check_shape(&self, gpus: u32) -> Result<(), Refusal> {
        let Some(pattern @ Pattern::Shape(shape)) = self.intent.pattern else {
            return Ok(());
        };
        let pods = match (&self.intent.gang, self.intent.gang_size) {
            (Some(_), None) => return Ok(()),
            (Some(_), Some(pods)) => pods,
            (None, _) => 1,
        };
        let sizes = [shape.tensor, shape.data, shape.pipeline];
        let wanted: u128 = sizes.into_iter().map(u128::from).product();
        let held = u128::from(gpus) * u128::from(pods);
        if wanted == held {
            return Ok(());
        }
        let job = match pods {
            1 => "the pod".to_owned(),
            _ => format!("the gang of {pods} pods"),
        };
        Err(Refusal::new(
            Rule::InvalidAnnotation,
            format!(
                "annotation {} has the shape {pattern}, which is for {wanted} GPU(s), but {job} has {held}: correct the shape, or set the gang's size in {}",
                labels::PATTERN,
                labels::GANG_SIZE
            ),
        ))
    }

    /// Checks that a project may hold as many GPUs as the job has. A larger job would wait forever.
    fn check_limit(&self, class: &Class, gpus: u32) -> Result<(), Refusal> {
        let limit = class.queue.as_ref();
        let Some(limit) = limit.and_then(|queue| queue.max_gpus_per_project) else {
            return Ok(());
        };
        let pods = self.intent.gang_size.unwrap_or(1);
        let wanted = u64::from(gpus) * u64::from(pods);
        if wanted <= u64::from(limit) {
            return Ok(());
        }
        Err(Refusal::new(
            Rule::ProjectLimit,
            format!(
                "the job has {wanted} GPUs, but a project may hold at most {limit} GPUs of class {:?} at a time: request fewer, or use another class",
                class.name
            ),
        ))
    }

    /// Checks that a job of several GPUs resumes if the nodes of the class may be taken away.
    fn check_checkpoint(&self, class: &Class, gpus: u32) -> Result<(), Refusal> {
        let several = gpus > 1 || self.intent.gang.is_some() || self.facts.evidence.spans;
        if !class.preemptible || !several || self.intent.checkpoint {
            return Ok(());
        }
        Err(Refusal::new(
            Rule::NoCheckpoint,
            format!(
                "the nodes of class {:?} may be taken away while a job runs (placement.preemptible), and a job of several GPUs loses its work then: if it resumes from a checkpoint, set annotation {} to \"true\" on its pods; otherwise use another class",
                class.name,
                labels::CHECKPOINT
            ),
        ))
    }

    fn unknown(&self, name: &str) -> Refusal {
        let shown: String = name.chars().take(64).collect();
        let message = format!(
            "annotation {} names the class {shown:?}, which does not exist: {}",
            labels::CLASS,
            self.known()
        );
        Refusal::new(Rule::UnknownClass, message).about(&shown)
    }

    fn known(&self) -> String {
        const SHOWN: usize = 20;
        let names: Vec<_> = self.view.class_names().take(SHOWN + 1).collect();
        match names.len() {
            0 => "there is no class; create a DomainClass".to_owned(),
            1..=SHOWN => format!("the classes are {}", names.join(", ")),
            _ => format!(
                "some classes are {}; kubectl get dclass lists all",
                names[..SHOWN].join(", ")
            ),
        }
    }

    fn without_gpus(&self, class: &Class, by: By) -> Vec<String> {
        match by {
            By::Annotation => vec![format!(
                "not changed: the pod names class {:?} but requests no {}",
                class.name, class.resource
            )],
            By::Namespace | By::AppliesTo => Vec::new(),
        }
    }

    /// Returns a warning if the pod's annotations have no effect, because no class applies.
    fn unheard(&self) -> Vec<String> {
        let gpus = pod::request(&self.facts.held.containers, GPU).unwrap_or(0);
        let said = self.intent.said.join(", ");
        if gpus == 0 || said.is_empty() {
            return Vec::new();
        }
        vec![format!(
            "not changed: no class applies to this pod, so {said} has no effect; {}",
            self.known()
        )]
    }

    /// Returns warnings about unknown annotations of a pod without a class. If they are the `first`
    /// warnings, they also report that no class applies.
    fn misspelt(&self, first: bool) -> Vec<String> {
        let mut lines = self.intent.unknown.clone();
        if let Some(line) = lines.first_mut().filter(|_| first) {
            *line = format!("not changed: no class applies to this pod, and {line}");
        }
        lines
    }

    /// Reports whether the class lists the pod's CI project.
    fn is_listed(&self, class: &Class) -> bool {
        let facts = self.facts;
        project::is_listed(class, facts.subject, facts.pod, facts.namespace)
    }
}

/// Returns warnings about classes that claim the pod, but whose right was not or could not be
/// checked.
fn skipped(failed: &[&str], unasked: usize) -> Vec<String> {
    let mut lines = Vec::new();
    if !failed.is_empty() {
        lines.push(format!(
            "restricted classes that claim this pod were skipped, because the right to use them could not be checked: {}",
            failed.join(", ")
        ));
    }
    if unasked > 0 {
        lines.push(format!(
            "{unasked} restricted classes that claim this pod were skipped: the right to use a class is checked for the first {MAX_QUESTIONS} only; name a class in annotation {}",
            labels::CLASS
        ));
    }
    lines
}
