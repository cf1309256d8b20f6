//! SVG elements, escaped, and the style that they share.

/// Colours of light and dark; states also differ in width and dashes, not in colour alone.
const STYLE: &str = "
  svg { --ink: #1b1f24; --soft: #59636e; --card: #ffffff; --edge: #b6bfc9; --zone: #f3f5f7; --link: #2e7d32; --bar: #dcefdc; --bad: #b3261e; }
  @media (prefers-color-scheme: dark) { svg { --ink: #e6edf3; --soft: #9aa4af; --card: #1c2128; --edge: #57606a; --zone: #262c34; --link: #76d07c; --bar: #1f3a24; --bad: #ff9a8f; } }
  text { font: 12px system-ui, sans-serif; fill: var(--ink); }
  .title { font-size: 15px; font-weight: 600; }
  .name { font-size: 13px; font-weight: 600; }
  .soft { fill: var(--soft); font-size: 11px; }
  .bad { fill: var(--bad); font-size: 11px; font-weight: 600; }
  .middle { text-anchor: middle; }
  .end { text-anchor: end; }
  .zone { fill: var(--zone); }
  .card { fill: var(--card); stroke: var(--edge); }
  .card-bad { fill: var(--card); stroke: var(--bad); stroke-width: 2.5; stroke-dasharray: 6 3; }
  .bar { fill: var(--bar); stroke: var(--link); }
  .link { stroke: var(--link); fill: none; }
  .tag { fill: var(--card); stroke: var(--link); }
";

/// A drawing in progress.
#[derive(Default)]
pub(super) struct Canvas {
    body: String,
}

impl Canvas {
    pub(super) fn text(&mut self, x: u32, y: u32, class: &str, text: &str) {
        let text = escape(text);
        self.body += &format!("<text x=\"{x}\" y=\"{y}\" class=\"{class}\">{text}</text>\n");
    }

    pub(super) fn rect(&mut self, at: (u32, u32), size: (u32, u32), radius: u32, class: &str) {
        let ((x, y), (width, height)) = (at, size);
        self.body += &format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"{radius}\" class=\"{class}\"/>\n"
        );
    }

    pub(super) fn line(&mut self, from: (u32, u32), to: (u32, u32), width: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.body += &format!(
            "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" class=\"link\" stroke-width=\"{width}\"/>\n"
        );
    }

    /// Opens a group with a tooltip; close it with [`Self::close`].
    pub(super) fn open(&mut self, tooltip: &str) {
        self.body += &format!("<g><title>{}</title>\n", escape(tooltip));
    }

    pub(super) fn close(&mut self) {
        self.body += "</g>\n";
    }

    /// The whole document.
    pub(super) fn finish(self, width: u32, height: u32, title: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             style=\"max-width:{width}px;width:100%\" role=\"img\">\n\
             <title>{}</title>\n<style>{STYLE}</style>\n{}</svg>\n",
            escape(title),
            self.body
        )
    }
}

/// Text that is safe inside XML and HTML, elements and attributes.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '&' => out += "&amp;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
