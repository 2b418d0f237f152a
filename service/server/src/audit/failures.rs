//! Failed authentications, counted: a client that tries API keys must not fill the store.

use std::collections::HashMap;
use std::net::IpAddr;

use latchgate_core::App;
use latchgate_core::access::KeyId;

use super::entry::{Action, Record};

/// How many groups are counted apart. The rest is one record.
const GROUPS_MAX: usize = 8;

#[derive(PartialEq, Eq, Hash)]
struct Group {
    from: Option<IpAddr>,
    app: Option<App>,
    key_id: Option<KeyId>,
    why: &'static str,
}

#[derive(Default)]
pub(super) struct Failures {
    groups: HashMap<Group, u64>,
    others: u64,
}

impl Failures {
    pub(super) fn count(&mut self, from: Option<IpAddr>, app: Option<App>, key_id: Option<KeyId>, why: &'static str) {
        let group = Group { from, app, key_id, why };
        let has_room = self.groups.len() < GROUPS_MAX;
        match self.groups.get_mut(&group) {
            Some(count) => *count += 1,
            None if has_room => {
                self.groups.insert(group, 1);
            }
            None => self.others += 1,
        }
    }

    /// The records of what was counted since the last call.
    pub(super) fn take(&mut self) -> Vec<Record> {
        let Self { groups, others } = std::mem::take(self);
        let record = |Group { from, app, key_id, why }: Group, attempts| Record {
            app: app.map(|app| app.as_str().to_owned()),
            key_id: key_id.map(|id| id.to_string()),
            from: from.map(|from| from.to_string()),
            outcome: why.to_owned(),
            attempts: Some(attempts),
            ..Record::of(Action::Authentication)
        };
        let mut records: Vec<Record> = groups.into_iter().map(|(group, attempts)| record(group, attempts)).collect();
        if others > 0 {
            let group = Group { from: None, app: None, key_id: None, why: "unauthorized" };
            records.push(Record { detail: Some("from further clients".to_owned()), ..record(group, others) });
        }
        records
    }
}
