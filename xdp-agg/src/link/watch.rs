//! Word of what changes about interfaces: they go up or down, come, go, and get another MTU.

use std::pin::Pin;

use futures_util::{Stream, StreamExt as _};
use rtnetlink::{MulticastGroup, new_multicast_connection};
use tracing::warn;

/// Tells that something has changed, and not what: that is looked up, so that nothing is missed
/// where the kernel had to drop a message.
pub struct Changes(Option<Pin<Box<dyn Stream<Item = ()> + Send>>>);

impl Changes {
    /// Of the interfaces of this thread's network namespace. To be called in a runtime.
    #[must_use]
    pub fn watch() -> Self {
        match new_multicast_connection(&[MulticastGroup::Link]) {
            Ok((connection, _, messages)) => {
                // The task ends with this.
                tokio::spawn(connection);
                Self(Some(Box::pin(messages.map(drop))))
            }
            Err(error) => {
                warn!("changes of interfaces are noticed a second late at most: {error}");
                Self(None)
            }
        }
    }

    /// The next change.
    pub async fn next(&mut self) {
        if let Some(stream) = &mut self.0
            && stream.next().await.is_some()
        {
            return;
        }
        self.0 = None;
        std::future::pending().await
    }
}
