//! The apps and API keys as this node knows them. The document is in the store of the locks; the node keeps all of it in memory and
//! looks for a change twice a second, so a request costs no call to a store, and known API keys are accepted while the store is away.

mod caller;
mod change;
mod fixed_key;
pub mod json;
pub mod operator;
pub mod quota;
mod refresh;
mod stored;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use latchgate_core::access::{Document, KeyId, Permissions, Quotas, Refusal};
use latchgate_core::{App, Timestamp};
use parking_lot::{Mutex, RwLock};
use tokio::time::{Duration, Instant, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use self::caller::Caller;
pub use self::change::ChangeFailure;
pub use self::fixed_key::FixedKey;
use self::quota::AppUse;
use crate::engines::EngineSet;

/// How long a list waits for what other nodes have changed.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Gives the time by the store's clock.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Why a request has no caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// It has no API key and needs one.
    NoKey,
    /// This node does not know yet whether a request needs an API key, and which there are.
    NotYetKnown,
    Refused(Refusal),
}

/// Handles share what the node knows.
#[derive(Clone)]
pub struct Access {
    inner: Arc<Inner>,
    /// Ends the refreshes with the last handle.
    _running: Arc<DropGuard>,
}

struct Inner {
    engines: EngineSet,
    clock: Clock,
    fixed: FixedKey,
    known: RwLock<Arc<Known>>,
    /// Held while `known` is replaced, which takes some ms for thousands of API keys. Requests read on meanwhile.
    installing: Mutex<()>,
    /// The caller of requests without an API key, as long as none is needed.
    open: Arc<Caller>,
    /// What each app uses of this node.
    app_uses: Mutex<HashMap<App, Arc<AppUse>>>,
    /// When this node last entered uses into the document.
    uses_entered: Mutex<Option<Instant>>,
}

/// What the node knows: replaced as a whole.
#[derive(Default)]
struct Known {
    /// Whether the document of the store has been read.
    is_read: bool,
    /// Of the store's document; 0 if it has none.
    version: u64,
    stored: Document,
    /// The store's document and the fixed API keys.
    document: Document,
    /// Those that are accepted.
    callers: HashMap<KeyId, Arc<Caller>>,
}

impl Access {
    /// Reads the document, and keeps reading it.
    ///
    /// # Errors
    /// When an engine is in use and does not give it.
    pub fn start(engines: EngineSet, clock: Clock, fixed: FixedKey) -> BoxFuture<'static, anyhow::Result<Self>> {
        async move {
            let default = App::default();
            let default_use = Arc::new(AppUse::new(default.clone()));
            let inner = Arc::new(Inner {
                engines,
                clock,
                fixed,
                known: RwLock::default(),
                installing: Mutex::default(),
                open: Arc::new(Caller::new(None, Permissions::all(default.clone()), Arc::clone(&default_use))),
                app_uses: Mutex::new(HashMap::from([(default, default_use)])),
                uses_entered: Mutex::default(),
            });
            inner.install(Known::default());
            match inner.read_document().await {
                Ok(()) => {}
                Err(error) if inner.engines.in_use().is_err() => {
                    tracing::warn!(%error, "the apps and API keys are not known yet");
                }
                Err(error) => return Err(error.into()),
            }
            let running = CancellationToken::new();
            tokio::spawn(running.clone().run_until_cancelled_owned(refresh::run(Arc::clone(&inner))));
            Ok(Self { inner, _running: Arc::new(running.drop_guard()) })
        }
        .boxed()
    }

    /// Finds out who sends a request.
    ///
    /// # Errors
    /// Says why the request is refused.
    pub fn check(&self, api_key: Option<&str>) -> Result<Arc<Caller>, Denied> {
        let known = self.inner.known();
        let Some(api_key) = api_key else {
            if known.document.needs_key {
                return Err(Denied::NoKey);
            }
            return if known.is_read { Ok(Arc::clone(&self.inner.open)) } else { Err(Denied::NotYetKnown) };
        };
        let now = self.now();
        let id = known.document.check(api_key, now).map_err(|refusal| match refusal {
            Refusal::Unknown if !known.is_read => Denied::NotYetKnown,
            refusal => Denied::Refused(refusal),
        })?;
        let caller = known.callers.get(&id).ok_or(Denied::Refused(Refusal::Unknown))?;
        caller.used(now);
        Ok(Arc::clone(caller))
    }

    /// Reads what other nodes have changed in the last moments. If the store does not answer, what is known stays.
    pub async fn look(&self) {
        let _ = timeout(LOOK_MAX, self.inner.read_document()).await;
    }

    /// Whether the app is there, or an API key names it.
    pub fn knows_app(&self, app: &App) -> bool {
        self.inner.known().document.knows_app(app)
    }

    /// The app of an API key, also of one that is no longer accepted.
    pub fn app_of(&self, id: Option<KeyId>) -> Option<App> {
        self.inner.known().document.keys.get(&id?).map(|entry| entry.permissions.app.clone())
    }

    /// What an API key is for, as the operator who created it said.
    pub fn name_of(&self, id: KeyId) -> Option<String> {
        self.inner.known().document.keys.get(&id)?.name.clone()
    }

    /// After what time, in ms, a lock of the app that is held is a notice.
    pub fn warn_after_ms(&self, app: &App) -> Option<u64> {
        self.inner.known().document.apps.get(app)?.warn_after_ms
    }

    /// Whether every request needs an API key.
    pub fn needs_key(&self) -> bool {
        self.inner.known().document.needs_key
    }

    /// All apps and API keys, those of the configuration too.
    pub fn document(&self) -> Document {
        self.inner.known().document.clone()
    }

    /// Of each app: the time until the first of its API keys that expire does, in ms.
    pub fn expiring_ms(&self) -> BTreeMap<App, u64> {
        let (known, now, mut first) = (self.inner.known(), self.now(), BTreeMap::new());
        let live = known.document.keys.values().filter(|entry| known.document.state_of(entry, now).is_ok());
        for (entry, expires_at) in live.filter_map(|entry| Some((entry, entry.expires_at?))) {
            let ms = expires_at.ms_since(now);
            first.entry(entry.permissions.app.clone()).and_modify(|first| *first = ms.min(*first)).or_insert(ms);
        }
        first
    }

    /// By the store's clock.
    pub fn now(&self) -> Timestamp {
        (self.inner.clock)()
    }
}

impl Inner {
    fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known.read())
    }

    /// There are as many as apps that have API keys, or have had some.
    fn app_use(&self, app: &App) -> Arc<AppUse> {
        let new = || Arc::new(AppUse::new(app.clone()));
        Arc::clone(self.app_uses.lock().entry(app.clone()).or_insert_with(new))
    }

    /// Replaces what is known by `next`, whose `document` and `callers` are made here. Requests whose API key is no longer accepted
    /// end. A document that is older than the known one changes nothing.
    fn install(&self, next: Known) {
        let now = (self.clock)();
        let _installing = self.installing.lock();
        let known = self.known();
        if next.version < known.version {
            return;
        }
        let document = self.fixed.added_to(&next.stored);
        let mut callers = HashMap::new();
        for (id, entry) in &document.keys {
            if document.state_of(entry, now).is_err() {
                continue;
            }
            let is_same = known
                .document
                .keys
                .get(id)
                .is_some_and(|before| before.sha256 == entry.sha256 && before.permissions == entry.permissions);
            let same = known.callers.get(id).filter(|_| is_same);
            let new = || Caller::new(Some(*id), entry.permissions.clone(), self.app_use(&entry.permissions.app));
            callers.insert(*id, same.cloned().unwrap_or_else(|| Arc::new(new())));
        }
        let mut app_uses = self.app_uses.lock();
        app_uses.retain(|app, _| document.knows_app(app));
        for (app, app_use) in &*app_uses {
            app_use.set(document.apps.get(app).map_or_else(Quotas::default, |entry| entry.quotas));
        }
        drop(app_uses);
        let is_ended =
            |(id, caller): &(&KeyId, &Arc<Caller>)| !callers.get(id).is_some_and(|same| Arc::ptr_eq(same, caller));
        let ended: Vec<Arc<Caller>> =
            known.callers.iter().filter(is_ended).map(|(_, caller)| Arc::clone(caller)).collect();
        let needs_key = document.needs_key;
        let next = Arc::new(Known { document, callers, ..next });
        *self.known.write() = next;
        // After that, no request begins with what has ended.
        ended.iter().for_each(|caller| caller.end());
        if needs_key {
            self.open.end();
        }
    }
}
