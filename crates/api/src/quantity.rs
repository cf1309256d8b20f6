//! Kubernetes quantities: whole numbers of GPUs, and amounts of other resources.

use serde_json::Value;

/// Parses `quantity` as a whole number: `8`, `"8"`, `"1k"`, `"2e1"`, `"1Ki"`, `"4000m"`.
/// Returns `None` if it is not a quantity, negative, not whole or beyond `u32`.
#[must_use]
pub fn whole(quantity: &Value) -> Option<u32> {
    match quantity {
        Value::Null => Some(0),
        Value::Number(number) => parse(&number.to_string()),
        Value::String(text) => parse(text),
        _ => None,
    }
}

/// Parses `quantity` times ten to the power of `decimals`, rounded up as Kubernetes rounds. Returns
/// `None` if it is not a quantity, negative or beyond `u64`.
#[must_use]
pub fn scaled(quantity: &Value, decimals: i32) -> Option<u64> {
    let number = match quantity {
        Value::Number(number) => Number::parse(&number.to_string()),
        Value::String(text) => Number::parse(text),
        _ => None,
    };
    let (whole, rest) = number?.times(decimals)?;
    u64::try_from(whole).ok()?.checked_add(u64::from(rest))
}

fn parse(text: &str) -> Option<u32> {
    let (whole, rest) = Number::parse(text)?.times(0)?;
    u32::try_from(whole).ok().filter(|_| !rest)
}

/// A number that is not negative.
struct Number {
    mantissa: u128,
    /// Exponents of ten and of two.
    decimal: i32,
    binary: u32,
}

impl Number {
    fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('+').unwrap_or(text);
        let split = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, suffix) = text.split_at(split);
        let (integer, fraction) = number.split_once('.').unwrap_or((number, ""));
        let fraction = fraction.trim_end_matches('0');
        let digits = format!("{}{fraction}", integer.trim_start_matches('0'));
        let no_digit = integer.is_empty() && !number.contains(|c: char| c.is_ascii_digit());
        if no_digit || fraction.contains('.') || digits.len() > 18 {
            return None;
        }
        let mantissa: u128 = if digits.is_empty() {
            0
        } else {
            digits.parse().ok()?
        };
        let (decimal, binary) = scale(suffix)?;
        Some(Self {
            mantissa,
            decimal: decimal - i32::try_from(fraction.len()).ok()?,
            binary,
        })
    }

    /// Returns the number times ten to the power of `decimals`, without its fraction, and whether
    /// it has one.
    fn times(&self, decimals: i32) -> Option<(u128, bool)> {
        if self.mantissa == 0 {
            return Some((0, false));
        }
        let exponent = self.decimal + decimals;
        let scaled = self.mantissa.checked_shl(self.binary)?;
        let power = 10_u128.checked_pow(exponent.unsigned_abs())?;
        if exponent >= 0 {
            return Some((scaled.checked_mul(power)?, false));
        }
        Some((scaled / power, scaled % power > 0))
    }
}

/// Returns a suffix as exponents of ten and of two.
fn scale(suffix: &str) -> Option<(i32, u32)> {
    Some(match suffix {
        "" => (0, 0),
        "n" => (-9, 0),
        "u" => (-6, 0),
        "m" => (-3, 0),
        "k" => (3, 0),
        "M" => (6, 0),
        "G" => (9, 0),
        "T" => (12, 0),
        "P" => (15, 0),
        "E" => (18, 0),
        "Ki" => (0, 10),
        "Mi" => (0, 20),
        "Gi" => (0, 30),
        "Ti" => (0, 40),
        "Pi" => (0, 50),
        "Ei" => (0, 60),
        other => {
            let exponent: i32 = other.strip_prefix(['e', 'E'])?.parse().ok()?;
            (Some(exponent).filter(|e| (-30..=30).contains(e))?, 0)
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantities() {
        for (quantity, expected) in [
            (json!(8), Some(8)),
            (json!("8"), Some(8)),
            (json!("08"), Some(8)),
            (json!("+8"), Some(8)),
            (json!(2.0), Some(2)),
            (json!(2.5), None),
            (json!("2.0"), Some(2)),
            (json!("2."), Some(2)),
            (json!(".5k"), Some(500)),
            (json!("4000m"), Some(4)),
            (json!("4001m"), None),
            (json!("1k"), Some(1000)),
            (json!("1Ki"), Some(1024)),
            (json!("2e1"), Some(20)),
            (json!("20e-1"), Some(2)),
            (json!("0"), Some(0)),
            (json!("0E"), Some(0)),
            (json!(null), Some(0)),
            (json!(""), None),
            (json!("."), None),
            (json!("-1"), None),
            (json!(-1), None),
            (json!("1.2.3"), None),
            (json!("four"), None),
            (json!("4 "), None),
            (json!("1e99"), None),
            (json!("5G"), None),
            (json!("1Ei"), None),
            (json!("123456789012345678901234567890"), None),
            (json!([1]), None),
            (json!(true), None),
        ] {
            assert_eq!(whole(&quantity), expected, "{quantity}");
        }
    }

    #[test]
    fn other_amounts_are_rounded_up() {
        for (quantity, decimals, expected) in [
            (json!("1500m"), 3, Some(1_500)),
            (json!("0.1"), 3, Some(100)),
            (json!(2), 3, Some(2_000)),
            (json!("1n"), 3, Some(1)),
            (json!("64Gi"), 0, Some(64 << 30)),
            (json!("1.5Ki"), 0, Some(1_536)),
            (json!("100m"), 0, Some(1)),
            (json!("1e-30"), 0, Some(1)),
            (json!("8Ei"), 0, Some(1 << 63)),
            (json!("16Ei"), 0, None),
            (json!("-1"), 0, None),
            (json!(null), 0, None),
        ] {
            assert_eq!(scaled(&quantity, decimals), expected, "{quantity}");
        }
    }
}
