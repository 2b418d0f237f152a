//! Work that is done once: the gate.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::attempt::{Attempt, Failed, OnExpiry};
use crate::claim::{PRE, Pending, is_about_attempt};
use crate::client::Client;
use crate::clock::{Moment, sleep_until};
use crate::error::{Error, Problem};
use crate::transport::{Failure, Pause, ms, new_id};

/// How long each call of a wait lasts.
const WAIT_PER_CALL: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_secs(60);

/// What happens while the gate does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnOutage {
    /// No work is done.
    #[default]
    Closed,
    /// The work is done without a claim, and nothing keeps two callers apart: for work that would rather be done twice than not at all.
    /// A success is entered afterwards, in the background, for as long as the process lives. See [`Attempt::is_claimed`]. So is the success of
    /// an attempt that no node has recorded. While a thousand of both are not entered, no other run begins.
    Proceed,
}

/// Operations of one name.
#[derive(Clone, Debug)]
pub struct Operation {
    pub(crate) client: Client,
    fields: Map<String, Value>,
    ttl: Duration,
    wait: Duration,
    on_expiry: OnExpiry,
    on_outage: OnOutage,
}

/// The answer to [`Operation::begin`].
#[derive(Debug)]
pub enum Begun {
    /// The work is the caller's: report how it ended.
    Go(Attempt),
    /// The work was done before.
    Duplicate(Duplicate),
}

/// The work was done before.
#[derive(Clone, Debug)]
pub struct Duplicate {
    /// What the attempt that did it has reported; null if nothing.
    pub result: Value,
    /// All fields of the answer: `at`, `attempt`, `result_omitted` and so on.
    pub problem: Problem,
}

impl Duplicate {
    /// The result as [`Operation::once`] returns it. Without it, the error has the answer: a result that is too long, or no JSON, is not stored.
    pub(crate) fn into_done<T: DeserializeOwned>(self) -> Result<Done<T>, Error> {
        if self.problem.field("result_omitted") == true {
            return Err(Error::Refused(self.problem));
        }
        let result = serde_json::from_value(self.result).map(Done::Before);
        result.map_err(|error| Error::Invalid(format!("the stored result: {error}")))
    }
}

/// What [`Operation::once`] returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done<T> {
    /// The work was done now.
    Now(T),
    /// The work was done before, with this result.
    Before(T),
}

impl<T> Done<T> {
    /// The result, whenever the work was done.
    pub fn into_result(self) -> T {
        match self {
            Self::Now(result) | Self::Before(result) => result,
        }
    }

    pub fn is_duplicate(&self) -> bool {
        matches!(self, Self::Before(_))
    }
}

/// Why [`Operation::once`] has no result.
#[derive(Debug)]
pub enum OnceError<E> {
    /// The work itself failed.
    Work(E),
    /// The gate did not let the work begin or go on, or does not know that it was done.
    Gate(Error),
}

impl<E: fmt::Display> fmt::Display for OnceError<E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Work(error) => error.fmt(formatter),
            Self::Gate(error) => error.fmt(formatter),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for OnceError<E> {}

impl Client {
    /// Operations of this name, each of which is done once.
    #[must_use]
    pub fn operation(&self, name: impl Into<String>) -> Operation {
        Operation::new(self.clone(), name.into())
    }
}

impl Operation {
    pub(crate) fn new(client: Client, name: String) -> Self {
        let mut fields = Map::new();
        fields.insert("operation".to_owned(), name.into());
        let (wait, on_expiry, on_outage) = (Duration::ZERO, OnExpiry::default(), OnOutage::default());
        Self { client, fields, ttl: TTL, wait, on_expiry, on_outage }.on_expiry(on_expiry)
    }

    /// Length of the lease between two heartbeats; 60 s unless set.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long to wait for the end of another attempt; not at all unless set.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// How long a success is remembered; a day unless set. Then the work may be done again. Nodes refuse it together with
    /// [`permanent`](Self::permanent).
    #[must_use]
    pub fn retention(self, retention: Duration) -> Self {
        self.field("retention_ms", ms(retention))
    }

    /// For contents that name a period: how long they are in use. Then the operation is forgotten, also if its outcome is unknown.
    #[must_use]
    pub fn ends_in(self, time: Duration) -> Self {
        self.field("ends_in_ms", ms(time))
    }

    /// A success is remembered for ever.
    #[must_use]
    pub fn permanent(self) -> Self {
        self.field("permanent", true)
    }

    /// What happens if the caller dies half-way; [`OnExpiry::Block`] unless set. Work that may be repeated says [`OnExpiry::Retry`].
    #[must_use]
    pub fn on_expiry(mut self, on_expiry: OnExpiry) -> Self {
        self.on_expiry = on_expiry;
        let name = match on_expiry {
            OnExpiry::Retry => "retry",
            OnExpiry::Block => "block",
        };
        self.field("on_expiry", name)
    }

    /// What happens while the gate does not answer; [`OnOutage::Closed`] unless set.
    #[must_use]
    pub fn on_outage(mut self, on_outage: OnOutage) -> Self {
        self.on_outage = on_outage;
        self
    }

    /// The claim is committed to disk.
    #[must_use]
    pub fn durable(self) -> Self {
        self.field("durability", "durable")
    }

    /// What must be equal in every call about the same contents, but does not identify them.
    #[must_use]
    pub fn checked(self, checked: impl Into<Value>) -> Self {
        self.field("checked", checked)
    }

    /// A line for people about the attempts of this caller: kept with the record and shown with it. At most 256 bytes.
    #[must_use]
    pub fn label(self, label: impl Into<String>) -> Self {
        self.field("label", label.into())
    }

    /// A JSON object about the attempts of this caller, kept with the record and shown with it. At most 1 KiB.
    #[must_use]
    pub fn metadata(self, metadata: impl Into<Value>) -> Self {
        self.field("metadata", metadata)
    }

    /// Keeps the contents with the record, so that a person can read them; at most 16 KiB.
    #[must_use]
    pub fn keep_contents(self) -> Self {
        self.field("keep_contents", true)
    }

    fn field(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(name.to_owned(), value.into());
        self
    }

    /// Asks whether the work with these contents may begin. Send with the work what identifies it.
    ///
    /// If the future is dropped, or no node has answered, a claim that was made meanwhile is given back in the background: see
    /// [`Client::settled`].
    ///
    /// # Errors
    /// [`Error::InProgress`] if another attempt runs and has not ended within the wait; [`Error::OutcomeUnknown`] if a person must find
    /// out how an earlier attempt has ended.
    pub async fn begin(&self, contents: &(impl Serialize + ?Sized)) -> Result<Begun, Error> {
        let contents =
            serde_json::to_value(contents).map_err(|error| Error::Invalid(format!("the contents: {error}")))?;
        let started = Moment::now();
        let wait_until = started.plus(self.wait);
        // Names this attempt: a repeated call gets the same stamp.
        let attempt_id = new_id();
        let mut body = self.fields.clone();
        body.insert("contents".to_owned(), contents);
        body.insert("attempt_id".to_owned(), attempt_id.into());
        body.insert("ttl_ms".to_owned(), ms(self.ttl).into());
        let mut pending = Pending::new(&self.client, body, self.ttl);
        let nodes = self.client.transport.nodes();
        let (mut pause, mut index) = (Pause::new(nodes), self.client.transport.preferred());
        let mut silent_since: Option<Moment> = None;
        let mut was_answered = false;
        loop {
            let ends = self.client.ends(wait_until, silent_since, was_answered);
            // The lease counts from the moment at which its call was sent, so most of it must be left after the wait.
            let longest = if was_answered { WAIT_PER_CALL } else { ends.left() / 4 };
            let wait = wait_until.left().min(longest).min(self.ttl / 3);
            pending.body["wait_ms"] = ms(wait).into();
            let sent = Moment::now();
            let was_in_doubt = std::mem::replace(&mut pending.is_in_doubt, true);
            let answer_max = wait + self.client.transport.share(self.client.answer_max, ends.minus(wait));
            let answer =
                self.client.transport.call(&mut index, &Method::POST, PRE, Some(&pending.body), answer_max).await;
            pending.is_in_doubt = match &answer {
                Ok(_) => false,
                // Only the gate's decision about this attempt says that an earlier call did not claim.
                Err(Failure::Decided(problem)) if is_about_attempt(problem) => false,
                Err(failure) => was_in_doubt || failure.may_have_run(),
            };
            match answer {
                Ok(answer) => {
                    let run = (self.on_outage == OnOutage::Proceed).then(|| pending.entry());
                    let attempt = Attempt::keep(self.client.clone(), sent, self.on_expiry, run, &answer);
                    return Ok(Begun::Go(attempt));
                }
                Err(Failure::Decided(problem)) => {
                    if problem.code() == "operation-in-progress" && !wait_until.has_passed() {
                        silent_since = None;
                        was_answered = true;
                        if sent.elapsed() >= wait / 2 {
                            pause = Pause::new(nodes);
                            continue;
                        }
                        // A node that is about to stop ends waits early.
                        self.client.transport.avoid(&mut index);
                        let before_next = pause.next(&Failure::Later(problem));
                        sleep_until(Moment::now().plus(before_next.min(wait_until.left()))).await;
                        continue;
                    }
                    return refused(problem);
                }
                Err(failure) => {
                    if pause
                        .after(
                            &failure,
                            self.client.failed(&failure, sent, wait_until, &mut silent_since, was_answered),
                        )
                        .await
                    {
                        continue;
                    }
                    let failure = pause.last(failure);
                    // Not before: a planned switch of the gate is over by then. And not beside an attempt that is known to run, nor if too many
                    // runs are not entered.
                    if self.on_outage == OnOutage::Proceed
                        && failure.is_outage()
                        && !was_answered
                        && let Some(place) = self.client.background.place()
                    {
                        let attempt = Attempt::without_claim(self.client.clone(), self.on_expiry, pending, place);
                        return Ok(Begun::Go(attempt));
                    }
                    return Err(failure.into_error());
                }
            }
        }
    }

    /// Does the work with these contents once: of all callers one does it, and every later one gets its result.
    ///
    /// The work is dropped, half done, when another attempt may take over.
    ///
    /// ```no_run
    /// # use latchgate_client::{Client, Failed};
    /// # async fn charge(order: u64) -> Result<String, std::io::Error> { Ok(String::new()) }
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let charges = Client::new(["http://127.0.0.1:7070"])?.operation("charge");
    /// let receipt = charges.once(&42, || async { Ok::<_, Failed<std::io::Error>>(charge(42).await?) }).await?.into_result();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// That of the work, or that of the gate; [`Error::Refused`] with `operation-duplicate` if the work was done before and its result
    /// could not be stored. After an error of the work the outcome is unknown, unless the work says that
    /// [nothing was done](Failed::nothing_done); with [`OnExpiry::Retry`] the next caller may do it.
    pub async fn once<T, E, W>(
        &self,
        contents: &(impl Serialize + ?Sized),
        work: impl FnOnce() -> W,
    ) -> Result<Done<T>, OnceError<E>>
    where
        T: Serialize + DeserializeOwned,
        E: fmt::Display,
        W: Future<Output = Result<T, Failed<E>>>,
    {
        let attempt = match self.begin(contents).await.map_err(OnceError::Gate)? {
            Begun::Go(attempt) => attempt,
            Begun::Duplicate(duplicate) => return duplicate.into_done().map_err(OnceError::Gate),
        };
        let ended = tokio::select! {
            ended = work() => ended,
            lost = attempt.lost() => return Err(OnceError::Gate(lost)),
        };
        match ended {
            Ok(result) => {
                attempt.succeed_with(&result).await.map_err(OnceError::Gate)?;
                Ok(Done::Now(result))
            }
            Err(failed) => {
                // The error of the work says more than that of a report.
                let _ = attempt.end(&failed).await;
                Err(OnceError::Work(failed.error))
            }
        }
    }
}

fn refused(problem: Problem) -> Result<Begun, Error> {
    match problem.code() {
        "operation-duplicate" => Ok(Begun::Duplicate(Duplicate { result: problem.field("result").clone(), problem })),
        "operation-in-progress" => Err(Error::InProgress(problem)),
        "operation-unknown" => Err(Error::OutcomeUnknown(problem)),
        _ => Err(Error::Refused(problem)),
    }
}
