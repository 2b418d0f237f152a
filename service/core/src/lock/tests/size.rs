//! The length of a state.

use super::*;

const BYTES_MAX: usize = 8 << 10;

fn metadata() -> Option<Metadata> {
    Some(Metadata::from_json_text(&format!("{{\"job\":\"{}\"}}", "x".repeat(1_000))))
}

fn written(state: &LockState) -> usize {
    state.to_json().unwrap().len()
}

#[test]
fn a_state_is_about_as_long_as_it_says() {
    let mut world = world();
    let check = |world: &World, what: &str| {
        let (said, written) = (world.state.bytes(), written(&world.state));
        assert!(written <= said && said <= 2 * written + 100, "{what}: {said} is said, {written} are written");
    };
    check(&world, "empty");
    let long = Some(Owner::parse(&"o".repeat(256)).unwrap());
    for number in 0..50 {
        let request = world.request("ann", Mode::Shared);
        let metadata = metadata().filter(|_| number % 3 == 0);
        let owners = [None, request.owner.clone(), long.clone()];
        let ids = [request.lease_id.clone(), LeaseId::parse(&format!("{number}-{}", "l".repeat(60))).unwrap()];
        let (owner, lease_id) = (owners[number % 3].clone(), ids[number % 2].clone());
        world.hold_as(Acquire { metadata, owner, lease_id, max_hold_ms: Some(60_000), ..request });
        check(&world, "with leases");
    }
    world.run(Command::Revoke(Revoke {
        note: note("why"),
        grace_ms: 1_000,
        token: None,
        owner: None,
        bytes_max: usize::MAX,
    }));
    check(&world, "with revocations");
    for lease in world.state.holders.clone().iter().skip(1) {
        world.release(lease);
    }
    check(&world, "with leases that have ended");
    for node in ["one", "other"] {
        world.wait(node, Mode::Exclusive);
    }
    check(&world, "with turns");
}

#[test]
fn a_lease_for_which_the_key_has_no_space_is_refused_and_changes_nothing() {
    let mut world = world();
    let request = |world: &mut World| Acquire {
        terms: Terms { bytes_max: BYTES_MAX, ..Terms::FREE },
        metadata: metadata(),
        ..world.request("ann", Mode::Shared)
    };
    let mut held = Vec::new();
    let full = loop {
        let request = request(&mut world);
        match world.run(Command::Acquire(request)) {
            Outcome::Granted(grant) => held.push(grant.lease),
            Outcome::KeyFull(full) => break full,
            outcome => panic!("{outcome:?}"),
        }
        assert!(world.state.bytes() <= BYTES_MAX && written(&world.state) <= BYTES_MAX);
    };
    assert!(full.bytes > BYTES_MAX && full.bytes_max == BYTES_MAX && held.len() >= 4);
    // A lease that is there can be repeated and renewed.
    let lease_id = held[0].lease_id.clone();
    let repeated = Acquire { lease_id, ..request(&mut world) };
    assert!(matches!(world.run(Command::Acquire(repeated)), Outcome::Granted(grant) if grant.repeated));
    assert!(matches!(world.renew(&held[0]), Outcome::Renewed(_)));
    world.release(&held[0]);
    let request = request(&mut world);
    world.hold_as(request);
}

#[test]
fn a_key_without_space_can_still_be_revoked() {
    let mut world = world();
    for _ in 0..30 {
        world.hold("ann", Mode::Shared);
    }
    let revoke =
        |note, bytes_max| Command::Revoke(Revoke { note, grace_ms: 1_000, token: None, owner: None, bytes_max });
    let bytes_max = world.state.bytes() + 30 * 100;
    let long = Note { reason: Some("r".repeat(512).as_str().into()), by: None };
    assert!(matches!(world.run(revoke(long, bytes_max)), Outcome::KeyFull(_)));
    assert!(matches!(world.run(revoke(note("short"), bytes_max)), Outcome::Revoking { leases: 30, .. }));
    assert!(matches!(world.run(revoke(Note::default(), 0)), Outcome::Revoking { leases: 30, .. }));
}

#[test]
fn a_renewal_whose_metadata_do_not_fit_changes_nothing() {
    let mut world = world();
    let lease = world.hold("ann", Mode::Exclusive);
    world.pass(100);
    let long = Metadata::from_json_text(&format!("{{\"step\":\"{}\"}}", "x".repeat(500)));
    let renew = |metadata: &Metadata, bytes_max| {
        let metadata = Some(metadata.clone());
        Command::Renew(Renew { metadata, bytes_max, ..Renew::new(lease.lease_id.clone(), None) })
    };
    assert!(matches!(world.run(renew(&long, 600)), Outcome::KeyFull(_)));
    assert_eq!(world.state.holders()[0], lease);
    assert!(matches!(world.run(renew(&long, usize::MAX)), Outcome::Renewed(_)));
    assert_eq!(world.state.holders()[0].metadata.as_ref(), Some(&long));
    let short = Metadata::from_json_text("{}");
    assert!(matches!(world.run(renew(&short, 0)), Outcome::Renewed(_)), "a state may become shorter at any time");
    let Outcome::Renewed(kept) = world.renew(&lease) else { panic!("not renewed") };
    assert_eq!(kept.metadata, Some(short));
}
