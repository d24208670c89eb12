//! Files that hold a secret.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use xdp_agg_common::control::Token;

/// Longest token in bytes: it travels in `Hello`, whose frame is short.
const TOKEN_MAX: usize = 1024;
/// Most tokens in a file: the one that is said, and those of before or after it.
const TOKENS_MAX: usize = 4;

/// Why a token cannot be read from a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The file cannot be read.
    #[error(
        "token-file: cannot read {path} ({source}); a text file with the token as its only line is \
         expected: check the path, and that this user may read it",
        path = path.display()
    )]
    Read {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is not secret: others than its owner may use the file.
    #[error(
        "token-file: others than its owner may use {path} (mode {mode:04o}), so it is no secret: \
         `chmod 600` it, and choose another token",
        path = path.display()
    )]
    Exposed {
        /// Its path.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It holds no token.
    #[error(
        "token-file: {path} does not hold a token: one line of 1 to {TOKEN_MAX} printable \
         characters is expected, for example of `openssl rand -hex 32`, and up to \
         {more} further lines with tokens that are accepted as well",
        more = TOKENS_MAX - 1,
        path = path.display()
    )]
    Content {
        /// Its path.
        path: PathBuf,
    },
}

/// Reads the token that this side says: the first of [`read_tokens`].
///
/// # Errors
/// See [`read_tokens`].
pub fn read_token(path: &Path) -> Result<Token, SecretError> {
    let first = read_tokens(path)?.into_iter().next();
    first.ok_or_else(|| SecretError::Content { path: path.into() })
}

/// Reads one to four tokens: the lines of a text file that its owner alone may use. The first one
/// is said to others, all are accepted from others. So a token is replaced without a moment at
/// which somebody has the wrong one. Blanks around a token and empty lines do not count.
///
/// # Errors
/// The file cannot be read, is open to others, or holds something else.
pub fn read_tokens(path: &Path) -> Result<Vec<Token>, SecretError> {
    let mut text = String::new();
    let mut read = || {
        let file = fs::File::open(path)?;
        let mode = file.metadata()?.permissions().mode();
        file.take((2 * TOKENS_MAX * TOKEN_MAX) as u64).read_to_string(&mut text)?;
        Ok(mode & 0o7777)
    };
    let mode = read().map_err(|source| SecretError::Read { path: path.into(), source })?;
    if mode & 0o077 != 0 {
        return Err(SecretError::Exposed { path: path.into(), mode });
    }
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let wrong = |token: &&str| token.len() > TOKEN_MAX || token.chars().any(char::is_control);
    if !(1..=TOKENS_MAX).contains(&lines.len()) || lines.iter().any(wrong) {
        return Err(SecretError::Content { path: path.into() });
    }
    Ok(lines.into_iter().map(|token| Token(token.into())).collect())
}

/// A sentence, if every user of this host may read or change the file.
#[must_use]
pub fn exposure(path: &Path) -> Option<String> {
    let mode = fs::metadata(path).ok()?.permissions().mode();
    (mode & 0o006 != 0).then(|| {
        format!(
            "every user of this host may read or change {path} (mode {:04o}): `chmod 600 {path}`",
            mode & 0o7777,
            path = path.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(text: &str, mode: u32) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(text.as_bytes()).expect("it can be written");
        let permissions = fs::Permissions::from_mode(mode);
        fs::set_permissions(file.path(), permissions).expect("it is ours");
        file
    }

    #[test]
    fn a_token_is_one_line() {
        for text in ["s3cret", "s3cret\n", " s3cret\r\n"] {
            let file = file(text, 0o600);
            assert_eq!(read_token(file.path()).expect("a token").0, "s3cret");
            assert_eq!(exposure(file.path()), None);
        }
        for text in ["", "\n", "bell\x07\n", &"x".repeat(TOKEN_MAX + 1), &"x".repeat(50_000)] {
            let file = file(text, 0o600);
            let error = read_token(file.path()).expect_err("no token").to_string();
            assert!(error.contains("one line"), "{error}");
        }
        let error = read_token(Path::new("/nowhere/token")).expect_err("no file").to_string();
        assert!(error.contains("/nowhere/token") && error.contains("check the path"), "{error}");
    }

    #[test]
    fn the_first_of_several_tokens_is_said_and_all_are_known() {
        let tokens = |text: &str| {
            let tokens = read_tokens(file(text, 0o600).path())?;
            Ok::<_, SecretError>(tokens.into_iter().map(|token| token.0).collect::<Vec<_>>())
        };
        assert_eq!(tokens("new\n old \r\n\n").expect("two"), ["new", "old"]);
        assert_eq!(read_token(file("new\nold\n", 0o600).path()).expect("two").0, "new");
        assert_eq!(tokens("a\nb\nc\nd").expect("four").len(), TOKENS_MAX);
        let error = tokens("a\nb\nc\nd\ne").expect_err("five").to_string();
        assert!(error.contains("up to 3 further lines"), "{error}");
    }

    #[test]
    fn a_token_that_others_may_read_is_none() {
        for mode in [0o640, 0o604, 0o620] {
            let error = read_token(file("s3cret", mode).path()).expect_err("no secret").to_string();
            assert!(error.contains("chmod 600") && !error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn a_secret_that_everybody_can_read_is_told() {
        for (mode, told) in [(0o600, false), (0o640, false), (0o644, true), (0o602, true)] {
            let file = file("s3cret", mode);
            let warning = exposure(file.path());
            assert_eq!(warning.is_some(), told, "{mode:o}: {warning:?}");
            assert!(warning.is_none_or(|text| text.contains("chmod 600")));
        }
    }
}
