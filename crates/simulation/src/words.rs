//! Figures as people read them.

/// Columns of a terminal.
const WIDTH: usize = 80;

/// Returns a duration with two units at most: `850 ms`, `42 s`, `3m 20s`, `2h 5m`, `3d 4h`.
pub(crate) fn duration(seconds: f64) -> String {
    if seconds == 0.0 {
        return "0 s".to_owned();
    }
    if seconds < 0.9995 {
        return format!("{:.0} ms", (seconds * 1000.0).max(1.0));
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // positive, saturates
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3_600 => two(whole, 60, "m", 1, "s"),
        3_600..86_400 => two(whole, 3_600, "h", 60, "m"),
        _ => two(whole, 86_400, "d", 3_600, "h"),
    }
}

fn two(seconds: u64, large: u64, name: &str, small: u64, rest: &str) -> String {
    format!(
        "{}{name} {}{rest}",
        seconds / large,
        seconds % large / small
    )
}

/// Returns a communication time with three digits: `8.62 ms`, `0.123 s`.
pub(crate) fn short(seconds: f64) -> String {
    let (value, unit) = match seconds {
        _ if seconds < 1.0 => (seconds * 1000.0, "ms"),
        _ => (seconds, "s"),
    };
    let decimals = match value {
        _ if value < 9.995 => 2,
        _ if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

/// Returns a share as a percentage.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Returns a number with commas between thousands.
pub(crate) fn number(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a number of things: `1 node`, `1,000 nodes`.
pub(crate) fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {what}{plural}", number(count))
}

/// Breaks a sentence into lines.
pub(crate) fn wrapped(sentence: &str) -> String {
    let mut text = String::new();
    let mut width = 0;
    for word in sentence.split(' ') {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > WIDTH {
            text.push('\n');
            width = 0;
        } else if width > 0 {
            text.push(' ');
            width += 1;
        }
        text += word;
        width += length;
    }
    text + "\n"
}
