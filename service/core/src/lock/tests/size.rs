//! The length of a state.

use super::*;

fn written(state: &LockState) -> usize {
    state.to_json().unwrap().len()
}

#[test]
fn a_key_has_space_for_some_hundred_leases_and_serves_them_when_full() {
    let mut world = world();
    let request = |world: &mut World| {
        let lease_id = LeaseId::parse(&format!("3b9d1c20-7f7e-4f0e-8a5e-{:012}", world.requests)).unwrap();
        with(world.request("ann", Mode::Shared), |terms| (terms.lease_id, terms.owner) = (lease_id, None))
    };
    let mut held = Vec::new();
    let full = loop {
        assert!(world.state.bytes() <= STATE_BYTES_MAX && written(&world.state) <= STATE_BYTES_MAX);
        let next = request(&mut world);
        match world.run(Command::Acquire(next)) {
            Outcome::Granted(grant) => held.push(grant.lease),
            Outcome::KeyFull(full) => break full,
            outcome => panic!("{outcome:?}"),
        }
    };
    assert!((300..=500).contains(&held.len()) && full.bytes > STATE_BYTES_MAX, "{}: {full:?}", held.len());
    let lease_id = held[0].lease_id.clone();
    let repeated = with(request(&mut world), |terms| terms.lease_id = lease_id);
    assert!(matches!(world.run(Command::Acquire(repeated)), Outcome::Granted(grant) if grant.repeated));
    assert!(matches!(world.renew(&held[0]), Outcome::Renewed(_)));
    world.release(&held[0]);
    let next = request(&mut world);
    world.hold_as(next);
}

/// A state with as many starts as it has space for can still be committed, and every lease of it can end.
#[test]
fn the_starts_of_a_window_are_bounded_by_the_length_of_the_state() {
    let mut world = world();
    let mut starts = 0;
    loop {
        let start = with(world.request("ann", Mode::Permits(1)), |terms| {
            (terms.demand.limit, terms.min_hold_ms) = (Some(5_000), 60_000);
        });
        match world.run(Command::Acquire(start)) {
            Outcome::Granted(grant) => drop(world.release(&grant.lease)),
            Outcome::KeyFull(_) => break,
            outcome => panic!("{outcome:?}"),
        }
        starts += 1;
    }
    assert!((800..1_500).contains(&starts), "{starts}");
    assert!(written(&world.state) <= world.state.bytes() && world.state.bytes() <= STATE_BYTES_MAX);
}

/// Fills the key with leases, up to `bytes`.
fn fill(world: &mut World, bytes: usize) -> Vec<Lease> {
    let mut held = Vec::new();
    while world.state.bytes() < bytes {
        held.push(world.hold("ann", Mode::Shared));
    }
    held
}

#[test]
fn a_key_without_space_can_still_be_revoked() {
    let mut world = world();
    let leases = fill(&mut world, STATE_BYTES_MAX / 2).len();
    let revoke = |note| Command::Revoke(Revoke { note, grace_ms: 1_000, token: None });
    let long = Note { reason: Some("r".repeat(512).as_str().into()), by: None };
    assert!(matches!(world.run(revoke(long)), Outcome::KeyFull(_)));
    let leases = u32::try_from(leases).unwrap();
    assert!(matches!(world.run(revoke(Note::default())), Outcome::Revoking { leases: all, .. } if all == leases));
}

#[test]
fn a_renewal_whose_metadata_do_not_fit_changes_nothing() {
    let mut world = world();
    let long = |bytes| Metadata::from_json_text(&format!("{{\"step\":\"{}\"}}", "x".repeat(bytes)));
    let held = fill(&mut world, STATE_BYTES_MAX - 1_000);
    let lease = &held[0];
    world.pass(100);
    let renew = |metadata: &Metadata| {
        Command::Renew(Renew { metadata: Some(metadata.clone()), ..Renew::new(lease.lease_id.clone(), None) })
    };
    assert!(matches!(world.run(renew(&long(1_000))), Outcome::KeyFull(_)));
    assert_eq!(world.state.holders()[0], *lease);
    assert!(matches!(world.run(renew(&long(300))), Outcome::Renewed(_)));
    assert_eq!(world.state.holders()[0].metadata, Some(long(300)));
    fill(&mut world, STATE_BYTES_MAX - 200);
    assert!(matches!(world.run(renew(&long(299))), Outcome::Renewed(_)), "a state may become shorter at any time");
    let Outcome::Renewed(kept) = world.renew(lease) else { panic!("not renewed") };
    assert_eq!(kept.metadata, Some(long(299)));
}
