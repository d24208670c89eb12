//! What callers call their calls.

use std::fmt;
use std::sync::Arc;

use crate::error::Error;

/// The caller's name for a call: `gradients/layer3`. It is among what the workers must agree on. So
/// two calls of one shape that are made in another order at another worker are an error, and are
/// not summed with each other. Without a name such calls cannot be told apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(Arc<str>);

impl Name {
    /// Bytes of the longest name.
    pub const MAX: usize = 128;

    /// A name of 1 to [`Self::MAX`] bytes.
    ///
    /// # Errors
    /// [`Error::Config`]: the text is empty or longer. No call is made then, and the communicator
    /// stays as it is.
    pub fn new(text: &str) -> Result<Self, Error> {
        if (1..=Self::MAX).contains(&text.len()) {
            return Ok(Self(text.into()));
        }
        let start: String = text.chars().take(16).collect();
        let (len, most) = (text.len(), Self::MAX);
        let problem = format!(
            "the name of a call has {len} bytes ({start:?} is its start); expected 1 to {most}"
        );
        Err(Error::Config { name: "name", problem })
    }

    /// It as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &self.0)
    }
}

/// What a call is, and its name if it has one.
pub(crate) fn named(what: &str, name: Option<&Name>) -> String {
    name.map_or_else(|| what.into(), |name| format!("{what} {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded() {
        let longest = "x".repeat(Name::MAX);
        for text in ["a", "gradients/layer3", "größe", &longest] {
            assert_eq!(Name::new(text).expect("it fits").as_str(), text);
        }
        for text in ["", &format!("{longest}y"), &"ö".repeat(65)] {
            let error = Name::new(text).expect_err("it does not");
            assert!(matches!(error, Error::Config { name: "name", .. }), "{error}");
            assert!(error.to_string().contains("1 to 128"), "{error}");
        }
        let name = Name::new("a \"b\"\n").expect("it fits");
        assert_eq!(named("sum", Some(&name)), r#"sum "a \"b\"\n""#);
        assert_eq!(named("sum", None), "sum");
    }
}
