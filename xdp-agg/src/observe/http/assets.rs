//! The page: files that are part of the program.

/// A file of the page.
pub(super) struct Asset {
    /// Where a browser asks for it.
    pub(super) path: &'static str,
    /// Its media type.
    pub(super) kind: &'static str,
    /// What it says.
    pub(super) bytes: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

macro_rules! assets {
    ($($path:literal: $kind:ident = $file:literal,)*) => {
        [$(Asset {
            path: $path,
            kind: $kind,
            bytes: include_bytes!(concat!("../../../assets/", $file)),
        }),*]
    };
}

/// All of them.
pub(super) const ASSETS: [Asset; 11] = assets! {
    "/": HTML = "index.html",
    "/icon.svg": IMAGE = "icon.svg",
    "/page.css": STYLE = "page.css",
    "/page.js": SCRIPT = "page.js",
    "/dom.js": SCRIPT = "dom.js",
    "/draw.js": SCRIPT = "draw.js",
    "/jobs.js": SCRIPT = "jobs.js",
    "/model.js": SCRIPT = "model.js",
    "/pace.js": SCRIPT = "pace.js",
    "/view.js": SCRIPT = "view.js",
    "/words.js": SCRIPT = "words.js",
};
