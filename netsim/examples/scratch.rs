use xdp_agg_netsim::fabric::*;
use xdp_agg_netsim::predict::*;
use xdp_agg_netsim::strategy::*;
use xdp_agg_topology::generate::*;
use xdp_agg_topology::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let (l, m): (usize, usize) = (a[1].parse().unwrap(), a[2].parse().unwrap());
    let g = SpineLeaf::oversubscribed((2, l, m), Rate::gbit(10), a[3].parse().unwrap())
        .generate()
        .unwrap();
    let t0 = std::time::Instant::now();
    for w in &a[4..] {
        let mut g = g.clone();
        let w: Way = w.parse().unwrap();
        if matches!(w, Way::Rina | Way::Passing | Way::Atp) {
            let n = if w == Way::Passing { 1 } else { l };
            for r in 0..n {
                g.equip(r);
            }
        }
        let mut q = Question::ideal(w, 97e6);
        q.costs.step = 10e-6;
        let t = std::time::Instant::now();
        let o = predict(&g.network, &g.topology, &q, &mut |_| {});
        match o {
            Ok(o) => println!(
                "{w} {:.6} events {} fillings {} wall {:?}",
                o.seconds / (97e6 / 1.25e9),
                o.events,
                o.fillings,
                t.elapsed()
            ),
            Err(e) => println!("{w} {e}"),
        }
    }
    println!("{:?}", t0.elapsed());
    let s = std::fs::read_to_string("/proc/self/status").unwrap();
    println!("{}", s.lines().find(|l| l.starts_with("VmHWM")).unwrap());
}
