//! Which class a pod is in.

use std::sync::Arc;

use nvlink_topology::{Pattern, Scope, labels};

use super::{
    By, Chosen, Facts, Intent, environment, guard, identity, project,
    refusal::{Refusal, Rule},
};
use crate::{
    authorize::{Grant, Grants},
    class::{Class, GPU, Unready},
    cluster::view::View,
    decide::pod,
};

/// Restricted classes that are asked about for one pod; those that would come
/// after so many refusals are taken for not granted.
const MAX_QUESTIONS: usize = 16;

/// What became of the choice.
#[derive(Debug)]
pub enum Choice {
    /// The pod is in no class; with lines for the user.
    Leave(Vec<String>),
    /// The same, and it must not see GPUs that it does not hold: it is for the
    /// nodes of this restricted class all the same, or has NVIDIA's runtime.
    Shield(Vec<String>, Option<Arc<Class>>),
    /// It must first be found out whether the subject may use this class.
    Ask(String),
    /// The pod is in a class.
    Take(Box<Chosen>),
}

/// Chooses the class of a pod. `grants` holds what was found out about
/// restricted classes; one that is not in it is asked for.
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
    let Choice::Leave(mut warnings) = choice else {
        return Ok(choice);
    };
    // A pod that was in a class before still is, so these are not ours.
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
    /// The restricted classes whose nodes the pod reaches for.
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

    /// A class that the pod or its namespace names: denied if it cannot be had.
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
        if let Some(unready) = class.unready {
            let message = format!("class {name:?} cannot be used, because {unready}");
            return Err(Refusal::new(Rule::NotSupported, message).about(name));
        }
        // Whether a restricted class may be used was found out by the guard.
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

    /// The first class that claims the pod and that its subject may use.
    fn claimed(&self) -> Result<Choice, Refusal> {
        // By resource, of which classes have few: what the pod asks for, and how it communicates.
        let mut asked: Vec<(&str, u32, Pattern)> = Vec::new();
        let (mut failed, mut unasked) = (Vec::new(), 0);
        let mut unready = Vec::new();
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
            if !claims || self.is_elsewhere(&class.name) {
                continue;
            }
            if let Some(reason) = class.unready {
                unready.push(passed_over(&class.name, reason));
                continue;
            }
            if class.restricted && !self.is_listed(class) {
                match self.grants.get(&class.name) {
                    None if self.grants.len() < MAX_QUESTIONS => {
                        return Ok(Choice::Ask(class.name.clone()));
                    }
                    Some(Grant::Granted) => {}
                    // It would be a gift, so there is nothing to refuse.
                    None => unasked += 1,
                    Some(Grant::Denied) => {}
                    Some(Grant::Failed(_)) => failed.push(class.name.as_str()),
                }
                if self.grants.get(&class.name) != Some(&Grant::Granted) {
                    continue;
                }
            }
            let warnings = [unready, skipped(&failed, unasked)].concat();
            let chosen = self.take(class, By::AppliesTo, gpus, warnings)?;
            return Ok(Choice::Take(chosen));
        }
        let mut warnings = self.unheard();
        warnings.extend(self.unnamed());
        warnings.extend(unready);
        warnings.extend(skipped(&failed, unasked));
        Ok(Choice::Leave(warnings))
    }

    /// Whether the pod, which names no class, is for the nodes of another
    /// restricted class than `name`: it would be counted for a class whose
    /// nodes it does not use.
    fn is_elsewhere(&self, name: &str) -> bool {
        self.reached.iter().any(|class| class.name != name)
    }

    fn unnamed(&self) -> Vec<String> {
        if self.reached.is_empty() || !self.facts.held.gpus {
            return Vec::new();
        }
        let names: Vec<_> = self.reached.iter().map(|class| &*class.name).collect();
        vec![format!(
            "not changed: the pod is for nodes of {} without naming a class, so it is in none: name one in annotation {}",
            names.join(", "),
            labels::CLASS
        )]
    }

    /// Whether the scope of the class itself cannot hold the pod, which is
    /// nothing to blame the pod for where it did not ask for the class.
    fn outgrows(&self, class: &Class, gpus: u32) -> bool {
        let crowd = gpus >= 2 || self.intent.gang.is_some();
        crowd && self.intent.scope.is_none() && class.scope == Scope::Gpu
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
        let about = |refusal: Refusal| refusal.about(&class.name);
        self.check_scope(scope, gpus).map_err(about)?;
        self.check_shape(gpus).map_err(about)?;
        let classified = self.facts.evidence.classify(self.intent, gpus);
        let (class, intent) = (Arc::clone(class), self.intent.clone());
        let facts = self.facts;
        let spans = intent.gang.is_some() || facts.evidence.spans;
        Ok(Box::new(Chosen {
            project: project::of(&class, facts.subject, facts.pod, facts.namespace),
            class,
            by,
            gpus,
            pattern: classified.pattern,
            guess: classified.guess,
            pattern_from: classified.from,
            spans,
            over_ssh: facts.evidence.over_ssh,
            minds_channels: spans && environment::minds_channels(facts.pod, &facts.held.containers),
            scope,
            intent,
            warnings,
        }))
    }

    fn check_scope(&self, scope: Scope, gpus: u32) -> Result<(), Refusal> {
        let crowd = match (gpus, &self.intent.gang) {
            (2.., _) => format!("{gpus} GPUs"),
            (_, Some(gang)) => format!("the gang {:?}", identity::shown(gang)),
            _ => return Ok(()),
        };
        if scope != Scope::Gpu {
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
                "{source} scope is gpu, which cannot hold {crowd}: ask for one GPU, or set annotation {} to nvlink-domain, node, rack or zone",
                labels::SCOPE
            ),
        ))
    }

    /// That a shape is one of as many GPUs as the job has. Of a gang that does
    /// not say its size nothing is known.
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
                "annotation {} has the shape {pattern} of {wanted} GPU(s), but {job} has {held}: correct the shape, or give the gang's size in {}",
                labels::PATTERN,
                labels::GANG_SIZE
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
                "not changed: the pod names class {:?} but asks for no {}",
                class.name, class.resource
            )],
            By::Namespace | By::AppliesTo => Vec::new(),
        }
    }

    /// Annotations that have no effect, because no class applies.
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

    /// Annotations that nobody knows, in a pod without a class; the `first` line says that it has none.
    fn misspelt(&self, first: bool) -> Vec<String> {
        let mut lines = self.intent.unknown.clone();
        if let Some(line) = lines.first_mut().filter(|_| first) {
            *line = format!("not changed: no class applies to this pod, and {line}");
        }
        lines
    }

    /// Whether the class lists the CI project that the pod is of.
    fn is_listed(&self, class: &Class) -> bool {
        let facts = self.facts;
        project::is_listed(class, facts.subject, facts.pod, facts.namespace)
    }
}

fn passed_over(name: &str, reason: Unready) -> String {
    format!("class {name:?}, which claims such pods, was passed over, because {reason}")
}

/// What to tell of classes that claim the pod but could not be asked about.
fn skipped(failed: &[&str], unasked: usize) -> Vec<String> {
    let mut lines = Vec::new();
    if !failed.is_empty() {
        lines.push(format!(
            "restricted classes that claim such pods were passed over, because whether they may be used could not be found out: {}",
            failed.join(", ")
        ));
    }
    if unasked > 0 {
        lines.push(format!(
            "{unasked} restricted classes that claim such pods were passed over: only the first {MAX_QUESTIONS} are asked about; name a class in annotation {}",
            labels::CLASS
        ));
    }
    lines
}
