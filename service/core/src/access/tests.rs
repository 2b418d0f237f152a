use super::*;
use crate::{App, Timestamp};

const NOW: Timestamp = Timestamp::from_ms(1_700_000_000_000);

fn api_key(number: u8) -> ApiKey {
    ApiKey::of_random([number; 6], [number; 32])
}

fn app(name: &str) -> App {
    App::parse(name).unwrap()
}

/// An API key with all permissions of an app.
fn new(name: &str, expires_at: Option<Timestamp>) -> NewKey {
    NewKey { permissions: Permissions::all(app(name)), expires_at, name: None, created_by: None }
}

/// A document with one API key, of the app `a`.
fn document() -> (Document, ApiKey) {
    let (mut document, key) = (Document::default(), api_key(1));
    document.create_app(&app("a"), NOW).unwrap();
    document.create_key(&key, new("a", Some(NOW.plus_ms(1_000))), NOW).unwrap();
    (document, key)
}

#[test]
fn an_api_key_has_a_form_that_scanners_know_and_a_checksum() {
    let key = api_key(0xab);
    assert!(key.as_str().starts_with("lgk_abababababab_abab") && key.as_str().len() == 89, "{}", key.as_str());
    assert_eq!(key.as_str().parse::<ApiKey>().unwrap(), key);
    assert_eq!(format!("{key:?}"), "lgk_abababababab_…");
    // As Python's zlib.crc32 has it.
    assert!(ApiKey::of_random([0; 6], [0; 32]).as_str().ends_with("4582a002"));
    for at in 0..key.as_str().len() {
        let mut text = key.as_str().as_bytes().to_vec();
        text[at] = if text[at] == b'0' { b'1' } else { b'0' };
        assert!(std::str::from_utf8(&text).unwrap().parse::<ApiKey>().is_err(), "changed at {at}");
    }
    for text in ["", "lgk_", &key.as_str()[..88], &key.as_str().to_uppercase(), &format!("{}0", key.as_str())] {
        assert_eq!(text.parse::<ApiKey>(), Err(InvalidApiKey::Form), "{text}");
    }
}

#[test]
fn an_api_key_is_found_anywhere_in_a_text() {
    let key = api_key(7);
    assert!(has_api_key(&format!("key={}", key.as_str())) && has_api_key(&format!("lgk_&{}", &key.as_str()[..20])));
    assert!(!has_api_key("prefix=lgk_jobs/") && !has_api_key("lgk_") && !has_api_key("lgk_é_0707070707_"));
}

#[test]
fn only_the_whole_api_key_is_accepted() {
    let (document, key) = document();
    assert_eq!(document.check(key.as_str(), NOW), Ok(key.id()));
    let same_id = ApiKey::of_random([1; 6], [2; 32]);
    assert_eq!(document.check(same_id.as_str(), NOW), Err(Refusal::Unknown));
    for text in ["nonsense", &"é".repeat(44), api_key(2).as_str()] {
        assert_eq!(document.check(text, NOW), Err(Refusal::Unknown), "{text}");
    }
}

fn disable() -> AppChange {
    AppChange { is_disabled: Some(true), ..AppChange::default() }
}

#[test]
fn a_refused_api_key_gets_the_reason_only_if_the_secret_is_right() {
    // The key is revoked or expired, or its app is disabled.
    let (document, key) = document();
    let guessed = ApiKey::of_random([1; 6], [9; 32]);
    assert_eq!(document.check(key.as_str(), NOW.plus_ms(999)), Ok(key.id()));
    assert_eq!(document.check(key.as_str(), NOW.plus_ms(1_000)), Err(Refusal::Expired));
    let mut disabled = document.clone();
    disabled.change_app(&app("a"), &disable(), NOW).unwrap();
    assert_eq!(disabled.check(key.as_str(), NOW), Err(Refusal::AppDisabled));
    assert!(!disabled.create_app(&app("a"), NOW).unwrap());
    assert_eq!(disabled.check(key.as_str(), NOW), Ok(key.id()));
    let mut revoked = document;
    assert_eq!((revoked.revoke(key.id(), NOW), revoked.revoke(key.id(), NOW)), (Ok(true), Ok(false)));
    assert_eq!(revoked.check(key.as_str(), NOW), Err(Refusal::Revoked));
    assert_eq!(revoked.check(guessed.as_str(), NOW), Err(Refusal::Unknown));
}

#[test]
fn once_there_was_an_api_key_every_request_needs_one() {
    let (mut document, key) = document();
    assert!(!Document::default().needs_key && document.needs_key);
    document.revoke(key.id(), NOW).unwrap();
    let later = NOW.plus_ms(40 * 24 * 3_600_000);
    document.create_key(&api_key(2), new("default", None), later).unwrap();
    assert!(document.needs_key && !document.keys.contains_key(&key.id()), "a revoked key is forgotten after 30 days");
}

#[test]
fn an_api_key_needs_an_app_and_the_default_app_is_always_there() {
    let mut document = Document::default();
    assert_eq!(document.create_key(&api_key(1), new("a", None), NOW), Err(ChangeRefused::UnknownApp));
    assert_eq!(document.change_app(&app("a"), &disable(), NOW), Err(ChangeRefused::UnknownApp));
    assert_eq!(document.revoke(api_key(1).id(), NOW), Err(ChangeRefused::UnknownKey));
    assert!(!document.needs_key);
    document.create_key(&api_key(1), new("default", None), NOW).unwrap();
    document.change_app(&App::default(), &disable(), NOW).unwrap();
    assert_eq!(document.check(api_key(1).as_str(), NOW), Err(Refusal::AppDisabled));
}

#[test]
fn a_prefix_permits_the_keys_and_the_prefixes_that_begin_with_it() {
    let permissions = Permissions { prefixes: vec!["jobs/".to_owned(), "é".to_owned()], ..Permissions::all(app("a")) };
    for (prefixes, are_permitted) in
        [(&["jobs/1", "jobs/", "éa"][..], true), (&["jobs", "", "other", "Jobs/1"][..], false)]
    {
        assert!(prefixes.iter().all(|prefix| permissions.permits_keys(prefix) == are_permitted), "{prefixes:?}");
    }
    assert!(Permissions::all(app("a")).permits_keys(""));
}

#[test]
fn only_an_admin_of_the_default_app_is_an_operator() {
    assert!(Permissions::all(App::default()).is_operator());
    assert!(!Permissions::all(app("a")).is_operator());
    assert!(!Permissions { prefixes: vec!["jobs/".to_owned()], ..Permissions::all(App::default()) }.is_operator());
    let scopes = vec![Scope::Read, Scope::Locks, Scope::Operations].into();
    assert!(!Permissions { scopes, ..Permissions::all(App::default()) }.is_operator());
}

#[test]
fn a_document_comes_back_as_it_was_and_has_no_secret_in_it() {
    let (mut document, key) = document();
    document.enter_use(key.id(), NOW);
    let text = serde_json::to_string(&document).unwrap();
    assert!(!text.contains(&key.as_str()[17..49]), "{text}");
    assert_eq!(serde_json::from_str::<Document>(&text).unwrap(), document);
    assert_eq!(serde_json::from_str::<Document>("{}").unwrap(), Document::default());
}

#[test]
fn the_last_use_is_known_to_the_hour() {
    let (mut document, key) = document();
    assert!(document.is_used_later(key.id(), NOW) && !document.is_used_later(api_key(2).id(), NOW));
    document.enter_use(key.id(), NOW);
    assert_eq!(document.keys[&key.id()].used_at, Some(Timestamp::from_ms(1_699_999_200_000)));
    assert!(!document.is_used_later(key.id(), NOW.plus_ms(2_799_999)));
    assert!(document.is_used_later(key.id(), NOW.plus_ms(2_800_000)));
}

#[test]
fn quotas_are_changed_one_by_one_and_outlast_a_disabled_app() {
    let (mut document, _) = document();
    let quotas = |document: &Document| document.apps[&app("a")].quotas;
    let limits = [(Quota::EventStreams, Some(7)), (Quota::Waiters, Some(0))];
    let limit = |quotas: &[(Quota, Option<u32>)]| AppChange { quotas: quotas.to_vec(), ..AppChange::default() };
    document.change_app(&app("a"), &limit(&limits), NOW).unwrap();
    document
        .change_app(&app("a"), &limit(&[(Quota::Waiters, None), (Quota::RequestsPerSecond, Some(9))]), NOW)
        .unwrap();
    document.change_app(&app("a"), &disable(), NOW).unwrap();
    document.create_app(&app("a"), NOW).unwrap();
    assert_eq!(quotas(&document), Quotas { event_streams: Some(7), requests_per_second: Some(9), ..Quotas::default() });
    assert_eq!(document.change_app(&app("b"), &limit(&limits), NOW), Err(ChangeRefused::UnknownApp));
    document.change_app(&App::default(), &limit(&limits), NOW).unwrap();
    let text = serde_json::to_string(&document).unwrap();
    assert_eq!(serde_json::from_str::<Document>(&text).unwrap(), document);
}

#[test]
fn api_keys_that_have_ended_make_room_for_new_ones() {
    let mut document = Document::default();
    let key = |number: usize| {
        let mut id = [0; 6];
        id[..4].copy_from_slice(&u32::try_from(number).unwrap().to_be_bytes());
        ApiKey::of_random(id, [0; 32])
    };
    for number in 0..KEYS_MAX {
        let expires_at = (number % 2 == 0).then(|| NOW.plus_ms(1_000 + number as u64));
        document.create_key(&key(number), new("default", expires_at), NOW).unwrap();
    }
    let before = document.create_key(&key(KEYS_MAX), new("default", None), NOW);
    assert_eq!(before, Err(ChangeRefused::TooManyKeys));
    let later = NOW.plus_ms(60_000);
    document.create_key(&key(KEYS_MAX), new("default", None), later).unwrap();
    // The one that expired first has gone.
    assert_eq!(document.keys.len(), KEYS_MAX);
    assert_eq!(document.check(key(0).as_str(), later), Err(Refusal::Unknown));
    assert_eq!(document.check(key(2).as_str(), later), Err(Refusal::Expired));
    assert_eq!(document.check(key(1).as_str(), later), Ok(key(1).id()));
    // An API key that was revoked a moment ago stays: requests with it may be under way.
    let mut full = Document::default();
    (0..KEYS_MAX).for_each(|number| full.create_key(&key(number), new("default", None), NOW).unwrap());
    full.revoke(key(7).id(), later).unwrap();
    assert_eq!(full.create_key(&key(KEYS_MAX), new("default", None), later), Err(ChangeRefused::TooManyKeys));
    full.create_key(&key(KEYS_MAX), new("default", None), later.plus_ms(3_000)).unwrap();
}
