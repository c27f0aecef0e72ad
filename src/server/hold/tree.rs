//! A weight-balanced search tree over the slots of another list, with a sum over every subtree.
//!
//! The list and the tree are indexed alike: node `i` is about element `i`. The tree holds no keys; an [`Order`] compares
//! elements. Balance is kept by the number of nodes, as by Adams with the parameters (3, 2), so that no input makes the
//! tree deeper than about 2.5·log2 of its nodes, and recursion is bounded.

use std::cmp::Ordering;
use std::mem;

/// No node.
const NONE: u32 = u32::MAX;
/// The most by which one subtree may outweigh its sibling.
const DELTA: u32 = 3;
/// From which share of its sibling on an inner grandchild takes a double rotation.
const RATIO: u32 = 2;

/// What is added up over a subtree.
pub trait Sum: Copy + Default {
    /// Both together.
    fn plus(self, other: Self) -> Self;
}

impl Sum for u64 {
    fn plus(self, other: Self) -> Self {
        self + other
    }
}

impl Sum for () {
    fn plus(self, (): Self) {}
}

/// How the elements behind the nodes compare, and what each adds to the sums.
pub trait Order<S> {
    /// A strict total order of elements.
    fn compare(&self, one: u32, other: u32) -> Ordering;
    /// What an element adds.
    fn weight(&self, slot: u32) -> S;
}

#[derive(Clone, Copy, Debug)]
struct Node<S> {
    left: u32,
    right: u32,
    /// Nodes of this subtree.
    count: u32,
    /// Of all elements of this subtree.
    sum: S,
}

/// A tree; see the module's description.
#[derive(Clone, Debug)]
pub struct Tree<S> {
    nodes: Vec<Node<S>>,
    root: u32,
}

impl<S> Default for Tree<S> {
    fn default() -> Self {
        Self { nodes: Vec::new(), root: NONE }
    }
}

impl<S: Sum> Tree<S> {
    /// Add the element after the last one. There is room for it.
    pub fn push(&mut self, order: &impl Order<S>) {
        let slot = self.nodes.len() as u32;
        self.nodes.push(Node { left: NONE, right: NONE, count: 1, sum: order.weight(slot) });
        self.root = self.insert_below(self.root, slot, order);
    }

    /// Build the tree again from all elements of the list, in order. As balanced as can be, in linear time.
    pub fn rebuild(&mut self, sorted: &[u32], order: &impl Order<S>) {
        self.nodes.clear();
        self.nodes.reserve_exact(sorted.len());
        self.nodes.resize(sorted.len(), Node { left: NONE, right: NONE, count: 0, sum: S::default() });
        self.root = self.build(sorted, order);
    }

    /// Remove an element; the last one takes its place, in this tree as in the list afterwards.
    pub fn swap_remove(&mut self, slot: u32, order: &impl Order<S>) {
        self.root = self.remove_below(self.root, slot, order);
        let last = self.nodes.len() as u32 - 1;
        if slot != last {
            let mut link = &mut self.root;
            // Ends at the last element, which is in the tree.
            while *link != last && *link != NONE {
                let (place, side) = (*link as usize, order.compare(last, *link));
                let node = &mut self.nodes[place];
                link = if side == Ordering::Less { &mut node.left } else { &mut node.right };
            }
            *link = slot;
        }
        self.nodes.swap_remove(slot as usize);
    }

    /// Take an element out before it changes, to [`put`](Self::put) it in again.
    pub fn take(&mut self, slot: u32, order: &impl Order<S>) {
        self.root = self.remove_below(self.root, slot, order);
    }

    /// Put an element in that was taken out.
    pub fn put(&mut self, slot: u32, order: &impl Order<S>) {
        self.nodes[slot as usize] = Node { left: NONE, right: NONE, count: 1, sum: order.weight(slot) };
        self.root = self.insert_below(self.root, slot, order);
    }

    /// The element that compares equal to what is looked for.
    pub fn find(&self, compare: impl Fn(u32) -> Ordering) -> Option<u32> {
        let mut place = self.root;
        while place != NONE {
            let node = &self.nodes[place as usize];
            place = match compare(place) {
                Ordering::Equal => return Some(place),
                Ordering::Less => node.left,
                Ordering::Greater => node.right,
            };
        }
        None
    }

    /// How many elements there are for which something is true, and their sum. It is true of the first ones only.
    pub fn before(&self, is_true: impl Fn(u32) -> bool, order: &impl Order<S>) -> (u32, S) {
        let (mut place, mut count, mut sum) = (self.root, 0, S::default());
        while place != NONE {
            let Node { left, right, .. } = self.nodes[place as usize];
            if is_true(place) {
                count += self.count(left) + 1;
                sum = sum.plus(self.sum(left)).plus(order.weight(place));
                place = right;
            } else {
                place = left;
            }
        }
        (count, sum)
    }

    /// The first element through which the sum satisfies something, that it goes on satisfying.
    pub fn reaching(&self, is_enough: impl Fn(S) -> bool, order: &impl Order<S>) -> Option<u32> {
        let (mut place, mut sum, mut found) = (self.root, S::default(), None);
        while place != NONE {
            let Node { left, right, .. } = self.nodes[place as usize];
            let through = sum.plus(self.sum(left)).plus(order.weight(place));
            if is_enough(through) {
                found = Some(place);
                place = left;
            } else {
                sum = through;
                place = right;
            }
        }
        found
    }

    /// The sum over all elements.
    pub fn total(&self) -> S {
        self.sum(self.root)
    }

    /// The first element.
    pub fn first(&self) -> Option<u32> {
        self.outermost(|node| node.left)
    }

    /// The last element.
    pub fn last(&self) -> Option<u32> {
        self.outermost(|node| node.right)
    }

    /// All elements, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let (mut above, mut next) = (Vec::new(), self.root);
        std::iter::from_fn(move || {
            while next != NONE {
                above.push(next);
                next = self.nodes[next as usize].left;
            }
            let place = above.pop()?;
            next = self.nodes[place as usize].right;
            Some(place)
        })
    }

    /// Make room for so many elements, no more.
    pub fn resize(&mut self, capacity: usize) {
        if capacity > self.nodes.capacity() {
            self.nodes.reserve_exact(capacity - self.nodes.len());
        } else {
            self.nodes.shrink_to(capacity);
        }
    }

    /// Bytes a node takes.
    pub const fn node_bytes() -> usize {
        mem::size_of::<Node<S>>()
    }

    /// Move the nodes to another place in memory (defragmentation).
    pub fn relocate(&mut self, relocate: &mut impl crate::Relocate) {
        self.nodes = relocate.list(mem::take(&mut self.nodes));
    }

    fn outermost(&self, side: impl Fn(&Node<S>) -> u32) -> Option<u32> {
        let mut place = self.root;
        loop {
            let next = side(self.nodes.get(place as usize)?);
            if next == NONE {
                return Some(place);
            }
            place = next;
        }
    }

    fn count(&self, place: u32) -> u32 {
        self.nodes.get(place as usize).map_or(0, |node| node.count)
    }

    fn sum(&self, place: u32) -> S {
        self.nodes.get(place as usize).map_or_else(S::default, |node| node.sum)
    }

    /// Make a subtree of these elements; its root.
    fn build(&mut self, sorted: &[u32], order: &impl Order<S>) -> u32 {
        let (before, rest) = sorted.split_at(sorted.len() / 2);
        let Some((place, after)) = rest.split_first() else { return NONE };
        let (left, right) = (self.build(before, order), self.build(after, order));
        let node = &mut self.nodes[*place as usize];
        (node.left, node.right) = (left, right);
        self.add_up(*place, order);
        *place
    }

    /// Add a node below another one; the subtree's new root.
    fn insert_below(&mut self, place: u32, slot: u32, order: &impl Order<S>) -> u32 {
        if place == NONE {
            return slot;
        }
        let Node { left, right, .. } = self.nodes[place as usize];
        if order.compare(slot, place) == Ordering::Less {
            let left = self.insert_below(left, slot, order);
            self.nodes[place as usize].left = left;
        } else {
            let right = self.insert_below(right, slot, order);
            self.nodes[place as usize].right = right;
        }
        self.balance(place, order)
    }

    /// Remove a node below, or at, another one; the subtree's new root.
    fn remove_below(&mut self, place: u32, slot: u32, order: &impl Order<S>) -> u32 {
        if place == NONE {
            return NONE;
        }
        let Node { left, right, .. } = self.nodes[place as usize];
        if place == slot {
            return self.join(left, right, order);
        }
        if order.compare(slot, place) == Ordering::Less {
            let left = self.remove_below(left, slot, order);
            self.nodes[place as usize].left = left;
        } else {
            let right = self.remove_below(right, slot, order);
            self.nodes[place as usize].right = right;
        }
        self.balance(place, order)
    }

    /// One tree of two, of which all of the first come first, and which balance each other.
    fn join(&mut self, left: u32, right: u32, order: &impl Order<S>) -> u32 {
        if left == NONE {
            return right;
        }
        if right == NONE {
            return left;
        }
        if self.count(left) > self.count(right) {
            let (rest, last) = self.without_last(left, order);
            self.link(last, rest, right, order)
        } else {
            let (rest, first) = self.without_first(right, order);
            self.link(first, left, rest, order)
        }
    }

    fn without_first(&mut self, place: u32, order: &impl Order<S>) -> (u32, u32) {
        let Node { left, right, .. } = self.nodes[place as usize];
        if left == NONE {
            return (right, place);
        }
        let (rest, first) = self.without_first(left, order);
        (self.link(place, rest, right, order), first)
    }

    fn without_last(&mut self, place: u32, order: &impl Order<S>) -> (u32, u32) {
        let Node { left, right, .. } = self.nodes[place as usize];
        if right == NONE {
            return (left, place);
        }
        let (rest, last) = self.without_last(right, order);
        (self.link(place, left, rest, order), last)
    }

    /// Put a node above two subtrees.
    fn link(&mut self, place: u32, left: u32, right: u32, order: &impl Order<S>) -> u32 {
        let node = &mut self.nodes[place as usize];
        (node.left, node.right) = (left, right);
        self.balance(place, order)
    }

    /// Add up a node again, and rotate it where one side has got too heavy; the subtree's new root.
    fn balance(&mut self, place: u32, order: &impl Order<S>) -> u32 {
        let Node { left, right, .. } = self.nodes[place as usize];
        let (left_count, right_count) = (self.count(left), self.count(right));
        if left_count + right_count < 2 {
            self.add_up(place, order);
            place
        } else if right_count > DELTA * left_count {
            let Node { left: inner, right: outer, .. } = self.nodes[right as usize];
            if self.count(inner) >= RATIO * self.count(outer) {
                let inner = self.rotate_right(right, order);
                self.nodes[place as usize].right = inner;
            }
            self.rotate_left(place, order)
        } else if left_count > DELTA * right_count {
            let Node { left: outer, right: inner, .. } = self.nodes[left as usize];
            if self.count(inner) >= RATIO * self.count(outer) {
                let inner = self.rotate_left(left, order);
                self.nodes[place as usize].left = inner;
            }
            self.rotate_right(place, order)
        } else {
            self.add_up(place, order);
            place
        }
    }

    fn rotate_left(&mut self, place: u32, order: &impl Order<S>) -> u32 {
        let above = self.nodes[place as usize].right;
        self.nodes[place as usize].right = self.nodes[above as usize].left;
        self.nodes[above as usize].left = place;
        self.add_up(place, order);
        self.add_up(above, order);
        above
    }

    fn rotate_right(&mut self, place: u32, order: &impl Order<S>) -> u32 {
        let above = self.nodes[place as usize].left;
        self.nodes[place as usize].left = self.nodes[above as usize].right;
        self.nodes[above as usize].right = place;
        self.add_up(place, order);
        self.add_up(above, order);
        above
    }

    fn add_up(&mut self, place: u32, order: &impl Order<S>) {
        let Node { left, right, .. } = self.nodes[place as usize];
        let count = self.count(left) + self.count(right) + 1;
        let sum = self.sum(left).plus(self.sum(right)).plus(order.weight(place));
        let node = &mut self.nodes[place as usize];
        (node.count, node.sum) = (count, sum);
    }
}
