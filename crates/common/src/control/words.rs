//! Words that a peer chose, as errors, replies, logs and terminals may show them.
//!
//! A peer's text is cleaned where its message is decoded: the fields of messages name
//! `name`, `sentence` or one of their kind to serde. So no line of a log is a peer's own, and
//! none is longer than is read.

use serde::{Deserialize as _, Deserializer};

/// Most characters of a name, and of each part of a call.
pub const NAME_MAX: usize = 200;
/// Most characters of a sentence: an error with its advice, or what ranks are awaited.
pub const SENTENCE_MAX: usize = 1000;

/// No more than this many characters of a text, and none that steers a terminal, ends a line, or
/// turns the direction of what follows.
#[must_use]
pub fn clean(text: &str, most: usize) -> String {
    let shown = |c: char| if steers(c) { ' ' } else { c };
    if text.chars().nth(most).is_none() {
        return text.chars().map(shown).collect();
    }
    text.chars().take(most.saturating_sub(1)).map(shown).chain(['…']).collect()
}

fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        || c == '\u{feff}'
}

pub(super) fn name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(clean(&String::deserialize(from)?, NAME_MAX))
}

pub(super) fn maybe_name<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.map(|text| clean(&text, NAME_MAX)))
}

/// For serde: [`clean`], with the length of a sentence.
///
/// # Errors
/// Not a text.
pub fn sentence<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(clean(&String::deserialize(from)?, SENTENCE_MAX))
}

/// For serde: the same of several.
///
/// # Errors
/// Not a list of texts.
pub fn sentences<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let all = Vec::<String>::deserialize(from)?;
    Ok(all.iter().map(|text| clean(text, SENTENCE_MAX)).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{BranchReply, Reply, Request, decode};
    use super::*;

    #[test]
    fn what_steers_goes_and_what_is_long_is_cut() {
        assert_eq!(clean("a\nb\r\u{1b}[2J\u{9b}c\u{2028}d\u{202e}e", 99), "a b  [2J c d e");
        assert_eq!(clean("größer", 6), "größer");
        assert_eq!(clean("größer", 5), "größ…");
        let long = "x\n".repeat(1 << 19);
        for most in [1, NAME_MAX, SENTENCE_MAX] {
            let cut = clean(&long, most);
            assert_eq!(cut.chars().count(), most);
            assert_eq!(clean(&cut, most), cut, "cleaning is done once");
        }
    }

    /// Every text of a message that reaches a log, an error or a reply.
    #[test]
    fn every_foreign_word_is_cleaned_where_it_is_decoded() {
        const EVIL: &str = "x\n2026-01-01T00:00:00Z  INFO xdp_agg: shutting down\u{1b}[2J";
        let long = EVIL.repeat(4000);
        let call = json!({
            "sequence": 0, "count": 1, "element": long, "operation": long, "numbers": long,
        });
        let member = json!({"kind": "member", "rank": 1, "reason": long});
        let branch = json!({"kind": "branch", "daemon": "10.0.0.1:9870", "reason": long});
        let operator = json!({"kind": "operator", "reason": long});
        let timeout = json!({"kind": "timeout", "ranks": [1], "step": long});
        let mismatch = json!({"kind": "call_mismatch", "rank": 1, "call": call});
        let standing = json!([{
            "rank": 1, "presence": "alive", "doing": {"call": long, "fellows": []},
        }]);
        let requests = [
            json!({"type": "hello", "body": {"version": 8, "agent": long}}),
            json!({"type": "abort", "body": {"reason": long}}),
            json!({"type": "call_mismatch", "body": {"call": call}}),
            json!({"type": "doing", "body": {"call": long}}),
        ];
        let aborted = [member, branch, operator, timeout, mismatch];
        let replies = aborted.map(|reason| json!({"type": "aborted", "body": reason}));
        let others = [
            json!({"type": "welcome", "body": {"version": 8, "agent": long, "engine": long}}),
            json!({"type": "meeting", "body": {"missing": [], "elsewhere": [long]}}),
            json!({"type": "reform", "body": {"lost": [], "reason": long}}),
            json!({"type": "standing", "body": standing}),
            json!({"type": "branch", "body": {"step": "failed", "epoch": 1, "reason": long}}),
            json!({"type": "error", "body": {"code": "engine", "message": long}}),
        ];
        let frame = |message: &serde_json::Value| {
            let body = message.to_string();
            [&(body.len() as u32).to_be_bytes()[..], body.as_bytes()].concat()
        };
        let is_clean = |told: &str| {
            assert!(told.len() < 4000, "{} bytes of {}", told.len(), &told[..100]);
            // As `Debug` shows them.
            assert!(!told.contains("\\n") && !told.contains("\\u{1b}"), "{told}");
        };
        for message in requests {
            let request: Option<Request> = decode(&mut frame(&message)).expect("it is one");
            is_clean(&format!("{request:?}"));
        }
        for message in replies.iter().chain(&others) {
            let reply: Option<Reply> = decode(&mut frame(message)).expect("it is one");
            is_clean(&format!("{reply:?}"));
            if let Some(Reply::Aborted(reason)) = reply {
                is_clean(&reason.to_string());
                assert!(!reason.to_string().chars().any(char::is_control));
            }
        }
        let kind = json!({"type": long});
        let error = decode::<Request>(&mut frame(&kind)).expect_err("no such message");
        assert!(error.to_string().len() < 1000 && !error.to_string().contains('\n'), "{error}");
        let step: Result<BranchReply, _> = serde_json::from_value(json!({"step": "failed"}));
        assert!(step.is_err());
    }
}
