//! The page as HTML. The sections follow each other in the order of [`main`].

use std::fmt::Write;

use nvlink_runtime::page::{self, Asset, escape};

use super::{
    board::Board,
    find::{self, Query},
    rendering::Rendering,
    row, summary,
};

const STYLE: Asset = Asset::style(&[page::STYLE, include_str!("page.css")]);
const SCRIPT: Asset = Asset::script(&[include_str!("page.js")]);

/// The page's `Content-Security-Policy`: it may load its own style and script, fetch from
/// its own origin and send the search there, and nothing else.
pub(super) const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
     img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// Returns the routes of style and script.
pub(super) fn assets<S: Clone + Send + Sync + 'static>() -> axum::Router<S> {
    STYLE.router().merge(SCRIPT.router())
}

/// Who answers, and the head of the page that all its views share.
pub(super) struct Frame<'a> {
    pub(super) title: &'a str,
    /// The replica that answers.
    pub(super) replica: &'a str,
    pub(super) board: &'a Board,
    /// What a refresh continues from; empty if the page is fetched again as a whole.
    pub(super) cursor: &'a str,
}

impl Frame<'_> {
    /// Renders the page around `main`.
    pub(super) fn html(&self, main: &str) -> String {
        let (title, replica) = (escape(self.title), escape(self.replica));
        let cursor = escape(self.cursor);
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <title>{mark}{title} · NVLink</title>\n<link rel=\"icon\" href=\"data:,\">\n\
             <link rel=\"stylesheet\" href=\"{style}\">\n<script src=\"{script}\" defer></script>\n\
             </head>\n<body>\n\
             <a class=\"skip\" href=\"#main\">Skip to the content</a>\n\
             <header><h1>{title}</h1><p class=\"soft\">from <span id=\"replica\">{replica}</span>, \
             {age}</p></header>\n\
             <p id=\"silent\" role=\"alert\" hidden></p>\n\
             <noscript><p class=\"note\">Without JavaScript, the page does not update: reload it for newer data.</p></noscript>\n\
             <main id=\"main\" tabindex=\"-1\" data-cursor=\"{cursor}\">\n{main}</main>\n\
             <footer><a href=\"/api/v1/cluster\">The cluster as JSON</a> · nvlink-webhook {version}</footer>\n\
             </body>\n</html>\n",
            mark = summary::mark(self.board),
            style = STYLE.address(),
            script = SCRIPT.address(),
            age = self.age(),
            version = env!("CARGO_PKG_VERSION"),
        )
    }

    /// Renders the age of the data. The script keeps counting from `data-age`, in seconds.
    fn age(&self) -> String {
        match self.board.age {
            Some(age) => format!(
                "<span id=\"age\" data-age=\"{0}\">{0} s ago</span>",
                age.as_secs()
            ),
            None => "<span id=\"age\">no data yet</span>".to_owned(),
        }
    }
}

/// Renders the sections of the page. `others` are those after the nodes.
pub(super) fn main(rendering: &Rendering, query: &Query, others: &str) -> String {
    let mut html = String::with_capacity(rendering.size() + others.len() + (16 << 10));
    let _ = write!(
        html,
        "<div id=\"summary\">\n{}</div>\n{}",
        summary::html(&rendering.board),
        search(query)
    );
    nodes(rendering, query, &mut html);
    html += others;
    html
}

/// Renders the section of waiting jobs around their list.
pub(super) fn queue(list: &str) -> String {
    format!(
        "<section class=\"queue\" id=\"queue\" tabindex=\"-1\"><h2>Waiting jobs</h2>\n\
         <div id=\"waiting\">\n{list}</div></section>\n"
    )
}

fn search(query: &Query) -> String {
    format!(
        "<form class=\"search\" role=\"search\" action=\"/\" method=\"get\">\n\
         <label for=\"q\">Find pods, projects, nodes</label> \
         <input id=\"q\" name=\"q\" type=\"search\" value=\"{}\" maxlength=\"500\" autocomplete=\"off\" \
         spellcheck=\"false\" placeholder=\"pod:ci/train  project:gitlab.42  node:gpu-1  is:broken\"> \
         <button>Find</button> <span id=\"found\" role=\"status\"></span></form>\n",
        escape(query.text())
    )
}

fn nodes(rendering: &Rendering, query: &Query, html: &mut String) {
    *html += "<section class=\"nodes\" id=\"nodes\" tabindex=\"-1\"><h2>Nodes</h2>\n";
    *html += "<fieldset class=\"by\"><legend>Colour by</legend>\
         <label><input type=\"radio\" name=\"by\" id=\"by-quality\" checked> quality</label> \
         <label><input type=\"radio\" name=\"by\" id=\"by-project\"> project</label></fieldset>\n";
    *html += LEGEND;
    if rendering.board.groups.is_empty() && rendering.board.age.is_some() {
        *html += "<p>There are no NodeTopologies: no exporter has published one. It does with \
             <code>--publish</code>.</p>\n";
    }
    for (n, group) in rendering.board.groups.iter().enumerate() {
        let found = group.places().into_iter().any(|place| match place {
            Ok(row) => row::is_found(row, query),
            Err(tray) => query.matches(&find::of_away(tray, &group.kind)),
        });
        let hidden = if found { "" } else { " hidden" };
        let _ = write!(
            html,
            "<section class=\"group\" id=\"group-{n}\"{hidden}><h3>{}</h3>\n<p class=\"soft\" id=\"group-{n}-sum\">{}</p>\n\
             <div role=\"table\" aria-label=\"{}\">\
             <div role=\"row\" class=\"sr\"><span role=\"columnheader\">Node</span><span role=\"columnheader\">GPUs</span>\
             <span role=\"columnheader\">Free</span><span role=\"columnheader\">Held by</span></div>\n",
            escape(&group.kind.title()),
            escape(&summary::of_group(group)),
            escape(&group.kind.title())
        );
        for place in group.places() {
            match place {
                Ok(row) => rendering.row(row, query, html),
                Err(tray) => *html += &row::away(tray, &group.kind, query),
            }
        }
        *html += "</div></section>\n";
    }
    *html += "</section>\n";
}

const LEGEND: &str = "<p class=\"legend\"><span><i class=\"f\"></i> free</span> \
     <span class=\"of-quality\"><i class=\"q3\">A</i> held by job A, placed as well as possible</span> \
     <span class=\"of-quality\"><i class=\"q2\">A</i> 70 % or better</span> \
     <span class=\"of-quality\"><i class=\"q1\">A</i> below 70 %</span> \
     <span class=\"of-quality\"><i class=\"q0\">A</i> not judged</span> \
     <span class=\"of-project\"><i class=\"q0 h4\">A</i><i class=\"q0 h4\">B</i> jobs of one project (or namespace)</span> \
     <span><i class=\"f b\"></i> broken, such as links missing</span> <span><i class=\"x\">?</i> not known</span> \
     <span>a frame: one NVLink domain</span></p>\n";
