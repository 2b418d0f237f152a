//! A tier under load, and its operator.

use std::cell::Cell;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;
use tokio::time::sleep;

use super::Args;
use super::watch::{VANISHING, Watch, start_recorder};
use crate::tier::ask::get;
use crate::tier::parts::send;
use crate::tier::{Kind, Plan, RECOVERY_MAX, Tier};

/// Leases last for 3 s at most, and end up to 0.2 s late.
const HOLD_OFF_ENOUGH: Duration = Duration::from_millis(3_500);
const MIXED: &str = "mixed";
/// Recorders that some faults kill.
pub const OTHER_CLIENTS: [&str; 2] = [VANISHING, MIXED];
pub const SOON: Duration = Duration::from_millis(200);

pub struct Target {
    pub tier: Tier,
    pub watch: Watch,
    pub binary: PathBuf,
    /// Leases and keys that were written by a clock that was ahead stay for as long.
    pub clocks_jumped: Cell<bool>,
}

impl Target {
    /// With `old`, the nodes are of this release.
    pub async fn start(kind: Kind, args: &Args, old: Option<&Path>, room: &Path, data: &Path) -> anyhow::Result<Self> {
        let binary = args.binary();
        // Hold-offs last as long.
        let mut settings = vec![("LATCHGATE_TTL_MAX", "60s"), ("LATCHGATE_OPERATION_TTL_MAX", "60s")];
        if args.is_long() {
            // The least that nodes accept, so that the collection has work.
            settings.extend([("LATCHGATE_IDLE_RETENTION", "60s"), ("LATCHGATE_HISTORY_RETENTION", "60s")]);
        }
        let settings = settings.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
        let plan = Plan { kind, is_breakable: true, binary: old.unwrap_or(&binary), balance: "by_key", settings };
        let tier = Tier::start(&plan, room, data).await?;
        let watch = Watch::start(&tier.parts, &tier.url, kind != Kind::Pair)?;
        watch.clocks_differ.set(kind == Kind::Pair);
        let mut mix = "shared,permits,rates,multilock,tickets,reentrant,revoke,hang-up".to_owned();
        // Old nodes beside new ones may exceed the limits of groups.
        mix += if old.is_none() { ",groups" } else { "" };
        // See the fault `master`.
        mix += if kind == Kind::Ha { "" } else { ",gate,gate,gate" };
        let urls = [vec![tier.url.clone()], tier.urls()].concat().join(",");
        let mixed = format!("--keys 4 --clients 12 --ttl-ms 2000 --abandon-one-in 20 --readers 2 --mix {mix}");
        start_recorder(&tier.parts, MIXED, &urls, "history-mixed-{start}", &mixed)?;
        watch.until_as_before("the start", RECOVERY_MAX, &tier.parts, async || Ok(())).await?;
        Ok(Self { tier, watch, binary, clocks_jumped: Cell::new(false) })
    }

    /// Kills a part, and keeps it from being started again, until [`let_up`](Self::let_up).
    pub async fn keep_down(&self, name: &str) {
        self.tier.parts.set_down(name, true);
        send(self.tier.parts.processes(name), Signal::SIGKILL);
        self.tier.parts.end(name, Signal::SIGKILL).await;
    }

    pub async fn let_up(&self, name: &str) -> anyhow::Result<()> {
        self.tier.parts.set_down(name, false);
        self.tier.until_up(name).await
    }

    pub async fn without_other_clients(&self) {
        for name in OTHER_CLIENTS {
            self.tier.parts.set_down(name, true);
            send(self.tier.parts.pid(name), Signal::SIGTERM);
        }
        while OTHER_CLIENTS.iter().any(|name| self.tier.parts.pid(name).is_some()) {
            sleep(SOON).await;
        }
        sleep(HOLD_OFF_ENOUGH).await;
    }

    /// Whether there was no hold-off, as one of the nodes says.
    pub async fn order_end_of_hold_off(&self) -> bool {
        for url in self.tier.urls() {
            let reply = get(&url, "/v1/admin/engines", Duration::from_secs(2)).await;
            if reply.status == 200 {
                if reply.body["locks"]["hold_off_ms"].as_u64().unwrap_or(0) == 0 {
                    return true;
                }
                self.tier.call("/v1/admin/hold-off", &json!({ "for_ms": 0 }), 5).await;
                return false;
            }
        }
        true
    }

    /// Ends it when no lease that was lost can be live.
    pub async fn end_hold_off(&self) {
        sleep(HOLD_OFF_ENOUGH).await;
        while !self.order_end_of_hold_off().await {
            sleep(SOON).await;
        }
    }

    pub async fn active_engine(&self) -> Option<String> {
        let reply = get(&self.tier.url, "/v1/admin/engines", Duration::from_secs(5)).await;
        reply.body["locks"]["active"].as_str().map(str::to_owned)
    }

    /// Whether the switch was done. `of` is `locks` or `gate`.
    pub async fn order_switch(&self, of: &str, engine: &str, is_stopped: bool) -> bool {
        let mut order = json!({ "engine": engine });
        if is_stopped {
            order["stopped"] = json!(true);
        }
        let reply = self.tier.call(&format!("/v1/admin/engines/{of}"), &order, 60).await;
        let log = File::options().create(true).append(true).open(self.tier.parts.file("switches.log"));
        let _ =
            log.and_then(|mut log| writeln!(log, "{} {order} {} {}", super::watch::now_us(), reply.status, reply.text));
        reply.status == 200
    }
}
