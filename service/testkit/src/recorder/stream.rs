//! A reader of a stream of events, which goes on at another node after a while, as after a broken connection.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use latchgate_bench::http::get;
use rand::RngExt as _;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::time::{Instant, sleep, timeout};

use super::Recorder;
use crate::caller::{Caller, Endpoint};
use crate::recorded::{Call, Event, Verb};

/// How long the reader stays at a node, at most.
const STAY_MAX: Duration = Duration::from_secs(5);

pub(super) struct Reader {
    recorder: Arc<Recorder>,
    caller: Caller,
    number: u64,
    /// The id of the last event.
    last: Option<String>,
    is_complete: bool,
}

impl Reader {
    pub(super) fn new(number: u64, recorder: &Arc<Recorder>) -> Self {
        let caller = recorder.caller(u64::MAX - number);
        Self { recorder: Arc::clone(recorder), caller, number, last: None, is_complete: false }
    }

    /// Returns when the last event was received.
    pub(super) async fn run(mut self) -> io::Result<()> {
        while !self.is_complete {
            let node = self.caller.random.random_range(0..self.recorder.args.urls.len());
            let stay = STAY_MAX.mul_f64(self.caller.random.random());
            let recorder = Arc::clone(&self.recorder);
            // A broken connection is as good as one that the reader has closed.
            let _ = timeout(stay, self.read(&recorder.endpoints[node], node)).await;
            self.caller.pause().await;
        }
        Ok(())
    }

    async fn read(&mut self, endpoint: &Endpoint, node: usize) -> io::Result<()> {
        let after = self.last.as_ref().map(|id| format!("&after={id}")).unwrap_or_default();
        let path = format!("/v1/events?prefix={}{after}", self.recorder.prefix());
        // With HTTP 1.0, the body has no chunks.
        let request = get(&endpoint.target, &path).replace(" HTTP/1.1\r\n", " HTTP/1.0\r\n");
        let mut stream = (endpoint.connect)().await?;
        stream.write_all(request.as_bytes()).await?;
        let mut lines = BufReader::new(stream).lines();
        if !lines.next_line().await?.is_some_and(|line| line.contains(" 200")) {
            sleep(Duration::from_millis(200)).await;
            return Ok(());
        }
        let (mut id, mut data) = (None, None);
        while let Some(line) = lines.next_line().await? {
            match line.split_once(": ") {
                Some(("id", text)) => id = Some(text.to_owned()),
                Some(("data", text)) => data = Some(text.to_owned()),
                _ if line.is_empty() => self.received(id.take(), data.take(), node)?,
                _ => {}
            }
            if self.is_complete {
                break;
            }
        }
        Ok(())
    }

    fn received(&mut self, id: Option<String>, data: Option<String>, node: usize) -> io::Result<()> {
        let Some(id) = id else { return Ok(()) };
        if self.last.replace(id.clone()).is_none() {
            self.write(node, Event { id: id.clone(), kind: Event::OPENED.to_owned() }, &Value::Null)?;
            self.recorder.streams.fetch_add(1, Ordering::Relaxed);
        }
        let Some(data) = data else { return Ok(()) };
        let data: Value = serde_json::from_str(&data)?;
        let kind = data["kind"].as_str().unwrap_or_default().to_owned();
        if data["key"].as_str() == Some(&self.recorder.end_key()) {
            self.is_complete = true;
            return self.write(node, Event { id, kind: Event::COMPLETE.to_owned() }, &Value::Null);
        }
        self.write(node, Event { id, kind }, &data)
    }

    fn write(&self, node: usize, event: Event, data: &Value) -> io::Result<()> {
        let now = self.recorder.us(Instant::now());
        let text = |name: &str| data[name].as_str().unwrap_or_default().to_owned();
        self.recorder.write(&Call {
            client: self.number,
            verb: Verb::Event,
            key: text("key"),
            owner: text("owner"),
            url: self.recorder.args.urls[node].clone(),
            sent_us: now,
            received_us: now,
            token: data["token"].as_u64(),
            event: Some(event),
            ..Call::default()
        })
    }
}
