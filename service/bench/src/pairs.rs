//! Workers that make one or two POSTs one after the other: acquire and release, pre and post, or what another service has instead.

use std::time::Duration;

use serde_json::Value;

use crate::drive::{Laps, Worker};
use crate::http::{Connection, Failure, KEY, Request, SEQUENCE, Target, lease_id_template};

/// What all workers do. Texts may contain `{run}` (random), `{worker}` (its number), `{sequence}` (of the pair), `{key}`, and `{id}`, a
/// lease id that no other pair has.
#[derive(Clone, Debug)]
pub struct Pair {
    pub first: Post,
    /// May also contain a text field of the first answer: `{.stamp}`.
    pub second: Option<Post>,
    /// A new key for each pair. Otherwise each worker has one.
    pub is_fresh: bool,
    /// After each pair that succeeds.
    pub pause: Duration,
}

#[derive(Clone, Debug)]
pub struct Post {
    /// In failures and latencies.
    pub name: &'static str,
    pub path: String,
    pub body: String,
    /// The answer, where a 2xx status does not mean success.
    pub answer: Option<String>,
}

impl Post {
    pub fn new(name: &'static str, path: &str, body: &str) -> Self {
        Self { name, path: path.to_owned(), body: body.to_owned(), answer: None }
    }

    fn of_worker(&self, run: u64, number: usize) -> Self {
        let filled = |text: &str| {
            text.replace("{run}", &format!("{run:016x}"))
                .replace("{worker}", &number.to_string())
                .replace("{id}", &lease_id_template(run, number))
                .replace("{sequence}", SEQUENCE)
                .replace("{key}", KEY)
        };
        Self { path: filled(&self.path), body: filled(&self.body), ..self.clone() }
    }
}

pub struct Caller {
    connection: Connection,
    first: Call,
    second: Option<Call>,
    is_fresh: bool,
    pause: Duration,
    number: usize,
}

struct Call {
    target: Target,
    post: Post,
    /// Fields of the first answer that `post` contains. Without any, the request is built beforehand.
    fields: Vec<String>,
    request: Request,
}

impl Caller {
    pub async fn open(target: &Target, run: u64, number: usize, pair: &Pair) -> anyhow::Result<Self> {
        let call = |post: &Post| Call::new(target, post.of_worker(run, number));
        Ok(Self {
            connection: Connection::open(target).await?,
            first: call(&pair.first),
            second: pair.second.as_ref().map(call),
            is_fresh: pair.is_fresh,
            pause: pair.pause,
            number,
        })
    }
}

impl Worker for Caller {
    /// After an unknown outcome the pair is repeated: the acquire gets its lease again, or `lease-lost`.
    async fn operation(&mut self, sequence: u64, laps: &mut Laps) -> Result<(), Failure> {
        let key = (self.number as u64) << 32 | if self.is_fresh { sequence } else { 0 };
        let answer = self.first.make(&mut self.connection, (sequence, key)).await?;
        if let Some(second) = &mut self.second {
            second.fill(answer)?;
        }
        laps.lap(self.first.post.name);
        if let Some(second) = &mut self.second {
            second.make(&mut self.connection, (sequence, key)).await?;
            laps.lap(second.post.name);
        }
        if !self.pause.is_zero() {
            tokio::time::sleep(self.pause).await;
        }
        Ok(())
    }
}

impl Call {
    fn new(target: &Target, post: Post) -> Self {
        let texts = format!("{} {}", post.path, post.body);
        let named = texts.split("{.").skip(1).filter_map(|rest| Some(rest.split_once('}')?.0.to_owned()));
        let request = Request::post(target, &post.path, &post.body);
        Self { target: target.clone(), fields: named.collect(), post, request }
    }

    /// Puts fields of the first answer into this call.
    fn fill(&mut self, answer: &[u8]) -> Result<(), Failure> {
        if self.fields.is_empty() {
            return Ok(());
        }
        let answer: Value = serde_json::from_slice(answer).map_err(|_| self.unexpected())?;
        let (mut path, mut body) = (self.post.path.clone(), self.post.body.clone());
        for field in &self.fields {
            let value = answer[field].as_str().ok_or_else(|| self.unexpected())?;
            let mark = format!("{{.{field}}}");
            (path, body) = (path.replace(&mark, value), body.replace(&mark, value));
        }
        self.request = Request::post(&self.target, &path, &body);
        Ok(())
    }

    async fn make<'a>(&mut self, connection: &'a mut Connection, numbers: (u64, u64)) -> Result<&'a [u8], Failure> {
        let answer = connection.call(self.post.name, self.request.with(numbers.0, numbers.1)).await?;
        match &self.post.answer {
            Some(expected) if expected.as_bytes() != answer => Err(self.unexpected()),
            _ => Ok(answer),
        }
    }

    fn unexpected(&self) -> Failure {
        Failure { what: format!("{}: an unexpected answer", self.post.name), outcome_unknown: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::post;

    #[test]
    fn a_field_of_the_first_answer_is_put_into_the_second_call() {
        let target = Target::parse("http://127.0.0.1:1").unwrap();
        let mut call = Call::new(&target, Post::new("post", "/{.id}/post", r#"{"stamp":"{.stamp}"}"#));
        call.fill(br#"{"id":"i","stamp":"s"}"#).unwrap();
        assert_eq!(call.request.with(0, 0), post(&target, "/i/post", r#"{"stamp":"s"}"#).as_bytes());
        assert!(call.fill(br#"{"id":1}"#).is_err());
    }
}
