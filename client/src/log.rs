//! The library's log for programs that have no subscriber of [`tracing`]: in other languages, a
//! line goes where these have their logs.

use std::fmt::{Debug, Write};

pub use tracing::Level;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Hands on what this library says, up to a level, one line a time. False: the process has a
/// subscriber already, which hears it.
///
/// `sink` is called by threads that keep calls going: it must not block.
pub fn forward(most: Level, sink: impl Fn(Level, String) + Send + Sync + 'static) -> bool {
    tracing::subscriber::set_global_default(Forward { most, sink }).is_ok()
}

struct Forward<S> {
    most: Level,
    sink: S,
}

impl<S: Fn(Level, String) + Send + Sync + 'static> Subscriber for Forward<S> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.most && metadata.target().starts_with("xdp_agg")
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let Line { message, fields } = line;
        let fields = if fields.is_empty() { fields } else { format!(" ({fields})") };
        (self.sink)(*event.metadata().level(), message + &fields);
    }

    // The library has no spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// What an event says.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a text cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => {
                let comma = if self.fields.is_empty() { "" } else { ", " };
                write!(self.fields, "{comma}{name}={value:?}")
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn a_line_has_message_and_fields_and_strangers_have_none() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        let sink = move |level, line| kept.lock().push((level, line));
        let forward = Forward { most: Level::WARN, sink };
        tracing::subscriber::with_default(forward, || {
            tracing::warn!(rank = 3, job = "train", "a call has waited {} s", 10);
            tracing::info!("too little");
            tracing::warn!(target: "other", "not ours");
        });
        let line = "a call has waited 10 s (rank=3, job=\"train\")".to_owned();
        assert_eq!(*lines.lock(), [(Level::WARN, line)]);
    }
}
