//! The stream of events of locks.

use std::time::Duration;

use rand::RngExt;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::client::Client;
use crate::clock::Moment;
use crate::error::Error;
use crate::transport::{ANSWER_MAX, Failure, Pause, encode};

/// Longest line of a stream.
const LINE_MAX: usize = 1024 * 1024;
/// Longest silence of a stream: the node sends a comment every 15 s.
const SILENCE_MAX: Duration = Duration::from_secs(45);

/// Longest time until a stream that has ended is called again.
const AFTER_END: Duration = Duration::from_secs(1);

/// An event of a lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Event {
    /// Keep it to continue [behind this event](Events::after) later.
    pub id: String,
    /// `granted`, `released`, `expired` and so on. After `dropped`, events between the ids `from` and `to` may be missing.
    pub kind: String,
    /// All fields.
    pub data: Value,
}

/// Events from now on. After a broken connection the stream continues at another node without a gap, or
/// with an event `dropped`.
pub struct Events {
    client: Client,
    path: String,
    stream: Option<reqwest::Response>,
    /// Of the node that was asked last.
    index: usize,
    /// Of the last whole event.
    last_id: Option<String>,
    id: Option<String>,
    unread: Vec<u8>,
    kind: String,
    data: String,
}

impl Client {
    /// The events of one lock from now on.
    #[must_use]
    pub fn watch(&self, key: &str) -> Events {
        Events::new(self.clone(), self.of_app(&format!("/v1/locks/{}/events", encode(key))))
    }

    /// The events of all locks whose keys begin with `prefix`, from now on.
    #[must_use]
    pub fn watch_prefix(&self, prefix: &str) -> Events {
        Events::new(self.clone(), self.of_app(&format!("/v1/events?prefix={}", encode(prefix))))
    }
}

impl Events {
    pub(crate) fn new(client: Client, path: String) -> Self {
        let (last_id, id, unread, kind, data) = (None, None, Vec::new(), String::new(), String::new());
        Self { client, path, stream: None, index: 0, last_id, id, unread, kind, data }
    }

    /// Begins behind the event with this id, and not now.
    #[must_use]
    pub fn after(mut self, id: impl Into<String>) -> Self {
        self.last_id = Some(id.into().trim().to_owned());
        self
    }

    /// The next event.
    ///
    /// # Errors
    /// [`Error::Refused`], and [`Error::Unreachable`] if no node has answered for the client's patience.
    pub async fn next(&mut self) -> Result<Event, Error> {
        loop {
            if let Some(line) = self.line().await?
                && let Some(event) = self.take(&line)
            {
                return Ok(event);
            }
        }
    }

    /// A line of the stream; `None` after a broken connection.
    async fn line(&mut self) -> Result<Option<String>, Error> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return Ok(Some(String::from_utf8_lossy(&line).trim_end().to_owned()));
            }
            let Some(stream) = &mut self.stream else {
                self.connect().await?;
                continue;
            };
            match timeout(SILENCE_MAX, stream.chunk()).await {
                Ok(Ok(Some(bytes))) if self.unread.len() < LINE_MAX => self.unread.extend_from_slice(&bytes),
                read => {
                    if read.is_err() {
                        // The node is silent, and would be called again first.
                        self.client.transport.avoid(&mut self.index);
                    }
                    self.stream = None;
                    self.id = None;
                    self.unread.clear();
                    self.kind.clear();
                    self.data.clear();
                    // It may end at once again.
                    let pause = AFTER_END.mul_f64(rand::rng().random_range(0.1..1.0));
                    sleep(pause).await;
                    return Ok(None);
                }
            }
        }
    }

    async fn connect(&mut self) -> Result<(), Error> {
        if self.last_id.as_deref().is_some_and(|id| !id.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(Error::Invalid("the id of an event has the wrong form".to_owned()));
        }
        let until = Moment::now().plus(self.client.patience);
        let transport = &self.client.transport;
        let mut pause = Pause::new(transport.nodes());
        self.index = transport.preferred();
        loop {
            // A node begins a stream at once.
            let within = transport.share(ANSWER_MAX, until);
            let failure = match transport.stream(&mut self.index, &self.path, self.last_id.as_deref(), within).await {
                Ok(stream) => {
                    self.stream = Some(stream);
                    return Ok(());
                }
                Err(failure) => failure,
            };
            if matches!(failure, Failure::Decided(_)) || !pause.after(&failure, until).await {
                return Err(failure.into_error());
            }
        }
    }

    fn take(&mut self, line: &str) -> Option<Event> {
        if line.is_empty() {
            // The node sends the id before the data: until here, the connection may break off within the event.
            self.last_id = self.id.take().or(self.last_id.take());
            let (kind, data) = (std::mem::take(&mut self.kind), std::mem::take(&mut self.data));
            let data = serde_json::from_str(&data).ok()?;
            let id = self.last_id.clone().unwrap_or_default();
            return (!kind.is_empty()).then_some(Event { id, kind, data });
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => self.id = Some(value.to_owned()),
            "event" => value.clone_into(&mut self.kind),
            "data" => self.data.push_str(value),
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_continues_behind_the_last_event_that_came_whole() {
        let mut events = Events::new(Client::new(["http://a"]).unwrap(), String::new());
        let lines = ["id: 4", "event: granted", "data: {}", "", ":", "", "id: 5", "event: released"];
        assert_eq!(lines.iter().filter_map(|line| events.take(line)).count(), 1);
        assert_eq!(events.last_id.as_deref(), Some("4"));
        assert!(["data: {}", ""].iter().any(|line| events.take(line).is_some()));
        assert_eq!(events.last_id.as_deref(), Some("5"));
    }
}
