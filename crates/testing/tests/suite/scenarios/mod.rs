//! Stories of whole clusters in which every node is a process of its own, as in real life: it can be killed,
//! stopped and started again at any moment.  What one process can show by itself is tested beside the library.

mod calls;
mod cluster;
mod coming_and_going;
mod directory_dies;
mod freeing;
mod idle;
mod locks_die;
mod movers_die;
mod moving;
mod owner_dies;
mod pattern;
mod role;
mod stopped;
mod stripes;

/// Not a test: what a story's processes do.  They are this program, started again by [`cluster::Cluster::start`].
#[test]
#[ignore = "it is started by the stories, and does what they say on its standard input"]
fn node_process() {
    role::play();
}
