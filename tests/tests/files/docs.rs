//! The documentation: that the site has each page once, that links lead somewhere, and that it stays
//! short.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
};

use crate::{path, project};

const SUMMARY: &str = "docs/SUMMARY.md";
/// The pages of the site that are not in `docs/`.
const OUTSIDE: [&str; 3] = [
    "CHANGELOG.md",
    "README.md",
    "deploy/charts/nvlink-domains/README.md",
];
/// The most words of a guide.
const GUIDE: usize = 1_200;
/// The most words of all pages in `docs/`, README and the changelog.
const ALL: usize = 35_000;

/// Returns the Markdown files below a directory, as paths in the repository.
fn pages_in(directory: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(path(directory)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let below = format!("{directory}/{name}");
        if path(&below).is_dir() {
            found.extend(pages_in(&below));
        } else if name.ends_with(".md") {
            found.insert(below);
        }
    }
    found
}

/// Returns the lines of a page outside blocks of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// Returns where the links of a line lead.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1);
    targets.filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

/// Returns the path in the repository to which a link of `page` leads.
fn target(page: &str, link: &str) -> String {
    let mut resolved = PathBuf::new();
    let folder = Path::new(page).parent().unwrap();
    for part in folder.join(link).components() {
        match part {
            Component::ParentDir => assert!(resolved.pop(), "{page}: {link}"),
            part => resolved.push(part),
        }
    }
    resolved.to_str().unwrap().to_owned()
}

/// Returns the sections of the site with their pages.
fn sections() -> Vec<(String, Vec<String>)> {
    let summary = project(SUMMARY);
    let mut sections: Vec<(String, Vec<String>)> = Vec::new();
    for line in summary.lines() {
        if let Some(title) = line.strip_prefix("# ") {
            sections.push((title.to_owned(), Vec::new()));
        }
        let (_, pages) = sections.last_mut().unwrap();
        pages.extend(links(line).map(|link| target(SUMMARY, link)));
    }
    sections
}

#[test]
fn the_site_has_each_page_once() {
    let sections = sections();
    let titles: Vec<_> = sections.iter().map(|(title, _)| title.as_str()).collect();
    let wanted = ["Summary", "Quick start", "Guides", "Reference", "Runbooks"];
    assert_eq!(titles, wanted);
    let mut listed = BTreeSet::new();
    for page in sections.into_iter().flat_map(|(_, pages)| pages) {
        assert!(listed.insert(page.clone()), "{SUMMARY} names {page} twice");
    }
    let mut there = pages_in("docs");
    there.remove(SUMMARY);
    there.extend(OUTSIDE.map(str::to_owned));
    assert_eq!(listed, there, "{SUMMARY}, and the pages");
}

fn words(page: &str) -> usize {
    project(page).split_whitespace().count()
}

#[test]
fn guides_and_the_whole_documentation_are_short() {
    let guides = sections().remove(2).1;
    let long = guides.iter().map(|page| (page, words(page)));
    let long: Vec<_> = long.filter(|(_, words)| *words > GUIDE).collect();
    assert!(
        long.is_empty(),
        "guides of more than {GUIDE} words: {long:?}"
    );
    let all = pages_in("docs").into_iter();
    let all = all.chain(["README.md", "CHANGELOG.md"].map(str::to_owned));
    let words: usize = all.map(|page| words(&page)).sum();
    assert!(words <= ALL, "{words} words");
}

/// Returns the anchors of a page, as GitHub and mdBook make them from headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let headings = prose(text).filter(|line| line.starts_with('#'));
    let anchors = headings.map(|heading| {
        let title = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = title
            .chars()
            .filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
        let anchor = kept.collect::<String>().replace(' ', "-");
        let earlier = seen.entry(anchor.clone()).or_default();
        *earlier += 1;
        match *earlier {
            1 => anchor,
            times => format!("{anchor}-{}", times - 1),
        }
    });
    anchors.collect()
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut pages = pages_in("docs");
    pages.extend(OUTSIDE.map(str::to_owned));
    pages.extend(["ARCHITECTURE.md", "CONTRIBUTING.md"].map(str::to_owned));
    let mut wrong = Vec::new();
    let mut seen = 0;
    for page in &pages {
        let text = project(page);
        for link in prose(&text).flat_map(links) {
            if link.contains("://") {
                continue;
            }
            seen += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let file = match file {
                "" => page.clone(),
                file => target(page, file),
            };
            let known = path(&file).exists()
                && (anchor.is_empty() || anchors(&project(&file)).contains(anchor));
            if !known {
                wrong.push(format!("{page}: {link}"));
            }
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere: {wrong:#?}");
    assert!(seen > 300, "{seen} links");
}
