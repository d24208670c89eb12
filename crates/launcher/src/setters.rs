//! Setters of builders, a row each.

/// Writes an `impl` of setters: each takes the builder, puts a value into one field, and gives the
/// builder back. A row says the setter, its argument, the field and what goes there; its
/// documentation stands above it.
///
/// ```
/// #[derive(Default)]
/// struct Builder {
///     rank: Option<u16>,
/// }
///
/// xdp_agg_launcher::setters! {
/// impl Builder {
///     /// The number of this process.
///     pub fn rank(rank: u16) => rank = Some(rank);
/// }
/// }
///
/// assert_eq!(Builder::default().rank(3).rank, Some(3));
/// ```
#[macro_export]
macro_rules! setters {
    (
        $(#[$about:meta])*
        impl $builder:ident {
            $($(#[$doc:meta])*
            $visible:vis fn $name:ident($argument:ident: $type:ty)
                => $($field:ident).+ = $value:expr;)*
        }
    ) => {
        $(#[$about])*
        impl $builder {
            $($(#[$doc])*
            #[must_use]
            $visible fn $name(mut self, $argument: $type) -> Self {
                self.$($field).+ = $value;
                self
            })*
        }
    };
}
