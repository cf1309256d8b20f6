//! A headless Chromium, controlled through the W3C WebDriver protocol.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::{
    http, port,
    process::{Process, command},
    workdir,
};

const START: Duration = Duration::from_secs(30);

const ARGUMENTS: [&str; 7] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
];

/// A browser with one window. It ends when dropped.
#[derive(Debug)]
pub struct Browser {
    session: String,
    // Dropped last: `drop` first ends the session, which ends the browser.
    driver: Process,
}

impl Browser {
    /// Starts `chromedriver`, which starts `chromium`.
    ///
    /// # Errors
    /// When one of them is not installed (`make packages` installs both) or does not start.
    pub fn start() -> Result<Self> {
        let port = port::free()?;
        let mut chromedriver = command("chromedriver");
        chromedriver.arg(format!("--port={port}"));
        let driver = Process::start("chromedriver", &workdir::fresh("browser")?, chromedriver)?;
        let root = format!("http://127.0.0.1:{port}");
        driver.wait_until("chromedriver to be ready", START, || {
            http::text(&format!("{root}/status")).map(Some)
        })?;
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": ARGUMENTS},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let value = call("POST", &format!("{root}/session"), &wanted)?;
        let id = value["sessionId"].as_str().context("no session id")?;
        Ok(Self {
            session: format!("{root}/session/{id}"),
            driver,
        })
    }

    /// Opens `url` and waits until it is loaded.
    ///
    /// # Errors
    /// When it cannot be loaded.
    pub fn open(&self, url: &str) -> Result<()> {
        self.post("url", &json!({ "url": url })).map(drop)
    }

    /// Runs `script`, the body of a function, in the page and returns its result.
    ///
    /// # Errors
    /// When it throws.
    pub fn run(&self, script: &str) -> Result<Value> {
        self.post("execute/sync", &json!({"script": script, "args": []}))
    }

    /// Returns the text of the page as a reader sees it.
    ///
    /// # Errors
    /// When there is no page.
    pub fn text(&self) -> Result<String> {
        let text = self.run("return document.body.innerText")?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    /// Sets the width of the window in CSS pixels, and the preferred `theme`, `dark` or `light`.
    ///
    /// # Errors
    /// When the browser cannot.
    pub fn emulate(&self, width: u32, theme: &str) -> Result<()> {
        let screen =
            json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500});
        self.devtools("Emulation.setDeviceMetricsOverride", &screen)?;
        let features = json!([{"name": "prefers-color-scheme", "value": theme}]);
        self.devtools("Emulation.setEmulatedMedia", &json!({"features": features}))
            .map(drop)
    }

    /// Disables scripts in pages that are opened from now on.
    ///
    /// # Errors
    /// When the browser cannot.
    pub fn forbid_scripts(&self) -> Result<()> {
        self.devtools(
            "Emulation.setScriptExecutionDisabled",
            &json!({"value": true}),
        )
        .map(drop)
    }

    /// Presses and releases one key. Special keys have WebDriver code points.
    ///
    /// # Errors
    /// When the browser cannot.
    pub fn press(&self, key: char) -> Result<()> {
        let actions = json!([{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]);
        let keyboard = json!([{"type": "key", "id": "keyboard", "actions": actions}]);
        self.post("actions", &json!({"actions": keyboard}))
            .map(drop)
    }

    /// Returns what was written to the console since the last call: errors of scripts,
    /// failed loads, violations of the content security policy.
    ///
    /// # Errors
    /// When the browser does not return it.
    pub fn console(&self) -> Result<Vec<String>> {
        let log = self.post("se/log", &json!({"type": "browser"}))?;
        let lines = log.as_array().into_iter().flatten();
        Ok(lines.map(|line| line["message"].to_string()).collect())
    }

    /// Writes a screenshot (PNG) of the whole page to `path`.
    ///
    /// # Errors
    /// When it cannot be taken or written.
    pub fn picture(&self, path: &Path) -> Result<()> {
        let shot = json!({"captureBeyondViewport": true, "format": "png"});
        let shot = self.devtools("Page.captureScreenshot", &shot)?;
        let base64 = shot["data"].as_str().context("no screenshot")?;
        fs::write(path, decode(base64)?).with_context(|| path.display().to_string())
    }

    fn devtools(&self, method: &str, parameters: &Value) -> Result<Value> {
        self.post(
            "goog/cdp/execute",
            &json!({"cmd": method, "params": parameters}),
        )
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value> {
        call("POST", &format!("{}/{path}", self.session), body)
            .with_context(|| format!("WebDriver {path}"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the browser, which has ended already if the driver has.
        if self.driver.check_running().is_ok() {
            let _ = http::send("DELETE", &self.session, "");
        }
    }
}

fn call(method: &str, url: &str, body: &Value) -> Result<Value> {
    let answer = http::send(method, url, &body.to_string())?;
    let mut value: Value = serde_json::from_str(&answer.body).context("WebDriver's answer")?;
    let value = value["value"].take();
    ensure!(
        answer.status == 200,
        "{}: {}",
        value["error"].as_str().unwrap_or_default(),
        value["message"].as_str().unwrap_or_default()
    );
    Ok(value)
}

/// Decodes Base64, in which WebDriver returns screenshots.
fn decode(text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for letter in text.bytes().filter(|&letter| letter != b'=') {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => bail!("not a Base64 character: {letter}"),
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
        }
    }
    Ok(bytes)
}
