//! One moving line that says what is going on and for how long, below what is printed.

use std::{
    io::{Write, stderr},
    time::{Duration, Instant},
};

use crate::style::{Paint, visible};

const FRAMES: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// How often the line moves.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// Draws on standard error, and only where somebody watches.
pub(crate) struct Spinner {
    watched: bool,
    paint: Paint,
    frame: usize,
    since: Instant,
    what: String,
    drawn: bool,
}

impl Spinner {
    pub(crate) fn new(watched: bool) -> Self {
        Self {
            watched,
            paint: Paint::for_stream(&stderr()),
            frame: 0,
            since: Instant::now(),
            what: "starting".to_owned(),
            drawn: false,
        }
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watched
    }

    /// Names what is going on from now on.
    pub(crate) fn now(&mut self, what: String) {
        self.what = visible(&what);
        self.since = Instant::now();
    }

    /// Draws the next frame. A terminal that takes no more is no reason to stop working.
    pub(crate) fn draw(&mut self) {
        if !self.watched {
            return;
        }
        self.frame = (self.frame + 1) % FRAMES.len();
        let seconds = self.since.elapsed().as_secs();
        let line = format!("{} {} {seconds}s", FRAMES[self.frame], self.what);
        let _ = write!(stderr(), "\r{}\x1b[K", self.paint.dim(&line));
        self.drawn = true;
    }

    /// Takes the line away, so that something can be printed.
    pub(crate) fn clear(&mut self) {
        if self.drawn {
            let _ = write!(stderr(), "\r\x1b[K");
            self.drawn = false;
        }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.clear();
    }
}
