//! Fair shares of permits among groups.

use std::collections::BTreeSet;

use super::*;

/// A client that waits for its answer.
struct Open;

impl ReplyHandle for Open {
    fn is_closed(&self) -> bool {
        false
    }
}

/// A node with its waiters.
struct Node {
    id: NodeId,
    queue: WaitQueue<Open, u64>,
}

impl Node {
    fn new(name: &str) -> Self {
        Self { id: NodeId::new(name), queue: WaitQueue::default() }
    }

    fn wait(&mut self, request: Acquire) {
        let request = Acquire { node: self.id.clone(), ..request };
        self.queue.insert(Waiter {
            id: request.position.serial,
            request,
            deadline: Some(u64::MAX),
            is_returning: false,
            is_probe: false,
            may_be_granted: false,
            reply: Open,
        });
    }

    /// A member of a group waits.
    fn wait_for(&mut self, world: &mut World, group: &str, limit: u32, group_limit: Option<u32>) {
        let request = world.member(group, limit, group_limit);
        self.wait(request);
    }

    /// Evaluates the waiters. Returns the leases that were granted.
    fn serve(&mut self, world: &mut World) -> Vec<Lease> {
        let evaluation = evaluate(&world.state, Batch::default(), &self.queue, &self.id, world.now, Terms::FREE);
        world.state = evaluation.state;
        let granted = |(rank, outcome)| {
            self.queue.remove(rank);
            match outcome {
                Outcome::Granted(grant) => grant.lease,
                outcome => panic!("not granted: {outcome:?}"),
            }
        };
        let granted = evaluation.answered.into_iter().map(granted).collect();
        self.queue.note_served(&world.state);
        granted
    }
}

impl World {
    /// A request for one permit of a group.
    fn member(&mut self, group: &str, limit: u32, group_limit: Option<u32>) -> Acquire {
        self.now = self.now.plus_ms(1);
        let share = Some(Share { group: Group::parse(group).unwrap(), limit: group_limit });
        let lease = with(self.request(group, Mode::Permits(1)), |terms| {
            (terms.demand.limit, terms.demand.share) = (Some(limit), share)
        });
        Acquire { node: NodeId::new("elsewhere"), ..lease }
    }
}

fn names(leases: &[Lease]) -> Vec<&str> {
    leases.iter().map(|lease| lease.owner.as_str()).collect()
}

/// Serves the nodes until all waiters have been granted a permit; each lease ends once no waiter is granted another.
fn order_of_service(world: &mut World, nodes: &mut [Node]) -> Vec<String> {
    let (mut order, mut held) = (Vec::new(), std::collections::VecDeque::new());
    while nodes.iter().any(|node| !node.queue.is_empty()) {
        world.now = world.now.plus_ms(10);
        let granted: Vec<Lease> = nodes.iter_mut().flat_map(|node| node.serve(world)).collect();
        order.extend(names(&granted).into_iter().map(str::to_owned));
        if granted.is_empty() {
            let lease: Lease = held.pop_front().expect("a waiter is left although no permit is held");
            world.release(&lease);
        }
        held.extend(granted);
    }
    order
}

#[test]
fn a_node_publishes_few_turns_and_says_that_it_has_more() {
    let mut world = world();
    let holder = world.member("held", 1, None);
    let holder = world.hold_as(holder);
    let mut node = Node::new("node");
    for number in 0..TURNS_PER_NODE_MAX + 5 {
        for _ in 0..2 {
            node.wait_for(&mut world, &format!("group-{number}"), 1, None);
        }
    }
    assert!(node.serve(&mut world).is_empty());
    let waiting: Vec<u32> = world.state.turns().iter().map(|turn| turn.waiting).collect();
    assert_eq!((waiting.len(), waiting.iter().sum::<u32>()), (TURNS_PER_NODE_MAX, 42));
    assert!(!world.state.may_admit_more(world.now), "no permit is free");
    world.release(&holder);
    assert!(world.state.may_admit_more(world.now));
}

#[test]
fn turns_of_groups_with_long_names_leave_space_for_leases() {
    let mut world = world();
    let holder = world.member("held", 1, None);
    world.hold_as(holder);
    for name in 0..30 {
        let mut node = Node::new(&format!("node-{name}"));
        for number in 0..TURNS_PER_NODE_MAX {
            let request = with(world.member("group", 1, None), |terms| {
                let group = Group::parse(&format!("{number:0>256}")).unwrap();
                terms.demand.share = Some(Share { group, limit: Some(1) });
            });
            node.wait(request);
        }
        assert!(node.serve(&mut world).is_empty());
    }
    let nodes = world.state.turns().iter().map(|turn| &turn.node).collect::<BTreeSet<_>>().len();
    assert_eq!(nodes, 30, "each node has its first turn");
    assert!(world.state.bytes() < TURNS_BYTES_MAX + 30 * 600, "{}", world.state.bytes());
    assert!(world.state.to_json().unwrap().len() <= world.state.bytes() + 30 * 40);
}

/// The older waiter of a group is not published: its group is at its limit for it, and the node has too many groups. So the other node
/// dates the group by its own waiter, and both must agree which turn is first.
#[test]
fn no_permit_stays_free_when_the_oldest_waiter_of_a_group_is_unpublished() {
    let mut world = world();
    let fillers: Vec<String> = (0..TURNS_PER_NODE_MAX).map(|number| format!("filler-{number}")).collect();
    let limit = u32::try_from(fillers.len()).unwrap() + 4;
    let holders = ["g", "h"].into_iter().chain(fillers.iter().map(String::as_str)).chain(["spare", "spare"]);
    let requests: Vec<Acquire> = holders.map(|group| world.member(group, limit, None)).collect();
    let holders: Vec<Lease> = requests.into_iter().map(|request| world.hold_as(request)).collect();
    world.now = world.now.plus_ms(1_000);
    let mut nodes = [Node::new("node-1"), Node::new("node-2")];
    let old = with(world.member("g", limit, Some(2)), |terms| terms.demand.mode = Mode::Permits(2));
    nodes[0].wait(old);
    for name in ["h"].into_iter().chain(fillers.iter().map(String::as_str)) {
        nodes[0].wait_for(&mut world, name, limit, None);
    }
    let mut urgent = world.member("g", limit, Some(2));
    urgent.position.priority = 10;
    nodes[1].wait(urgent);
    for node in &mut nodes {
        assert!(node.serve(&mut world).is_empty());
    }
    let is_published = |turn: &Turn| turn.node.as_str() == "node-1" && turn.group().unwrap().as_str() == "g";
    assert!(!world.state.turns().iter().any(is_published));
    holders.iter().filter(|lease| lease.owner.as_str() == "spare").for_each(|lease| drop(world.release(lease)));
    let granted: Vec<Lease> = [1, 0, 1, 0].into_iter().flat_map(|index| nodes[index].serve(&mut world)).collect();
    assert_eq!(names(&granted), ["h", "filler-0"]);
}

/// Only sixteen groups of a node have turns, in which the state keeps when a group was served.
#[test]
fn more_groups_than_a_node_publishes_take_turns() {
    for nodes in [1, 2] {
        let mut world = world();
        let mut nodes: Vec<Node> = (0..nodes).map(|number| Node::new(&format!("node-{number}"))).collect();
        let groups: Vec<String> = (0..2 * TURNS_PER_NODE_MAX + 5).map(|number| format!("{number:02}")).collect();
        for (index, group) in groups.iter().enumerate() {
            for _ in 0..3 {
                let request = world.member(group, 1, None);
                let index = index % nodes.len();
                nodes[index].wait(request);
            }
        }
        // The turns of both nodes are among the first.
        let order = order_of_service(&mut world, &mut nodes);
        for (round, served) in order.chunks(groups.len()).enumerate() {
            assert_eq!(served.iter().collect::<BTreeSet<_>>().len(), groups.len(), "{round}: {served:?}");
        }
    }
}
