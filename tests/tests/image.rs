//! The image of `packaging/container/Containerfile`: built from the tarball, and used.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::packages::{bare_debian, packages, repository};
use support::{Lab, check_sums, need_root, network};
use xdp_agg_testbed::Process;

/// Images and containers in a directory of their own.
struct Buildah<'a>(&'a Path);

impl Buildah<'_> {
    /// With this command of buildah.
    fn add_to(&self, command: &mut Command, arguments: &[&str]) {
        command.env("STORAGE_DRIVER", "vfs").env("BUILDAH_ISOLATION", "chroot");
        command.arg("--root").arg(self.0.join("store")).arg("--runroot").arg(self.0.join("run"));
        command.args(arguments);
    }

    fn run(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("buildah");
        self.add_to(&mut command, arguments);
        let output = command.output().expect("buildah runs: apt-get install buildah");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "buildah {arguments:?}: {said}");
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    }
}

/// Its own user has no right at all, and workers are served.
#[test]
fn the_image_serves_without_privileges() {
    need_root!();
    let Some(root) = bare_debian() else { return };
    let out = tempfile::tempdir().expect("a directory");
    let (_, tarball) = packages(out.path());
    let buildah = Buildah(out.path());
    // Instead of the public image, which a test does not load: the same system.
    let base = buildah.run(&["from", "scratch"]);
    let place = buildah.run(&["mount", &base]);
    let mut copy = Command::new("cp");
    copy.args(["-a", "--reflink=auto", "-T"]).arg(&root).arg(place);
    assert!(copy.status().expect("cp runs").success());
    buildah.run(&["commit", "--quiet", "--rm", &base, "bare"]);
    let file = repository().join("packaging/container/Containerfile").display().to_string();
    let name = tarball.file_name().expect("a name").to_string_lossy();
    let argument = format!("TARBALL={name}");
    let context = tarball.parent().expect("a directory").join("context");
    fs::create_dir(&context).expect("a directory");
    fs::rename(&tarball, context.join(&*name)).expect("it is moved");
    buildah.run(&[
        "build",
        "--quiet",
        "--pull-never",
        "--file",
        &file,
        "--tag",
        "xdp-agg",
        "--build-arg",
        "BASE=localhost/bare",
        "--build-arg",
        &argument,
        &context.display().to_string(),
    ]);

    let container = buildah.run(&["from", "--pull-never", "localhost/xdp-agg"]);
    let id = buildah.run(&["run", &container, "--", "id", "--user"]);
    assert_eq!(id, "65534");
    let mut lab =
        Lab { topology: network(2, "ports"), daemon: None, engine: "userspace", extra: Vec::new() };
    let mut daemon = lab.topology.aggregator().command("buildah");
    let (control, addr) = (lab.control().to_string(), lab.topology.aggregator_addr().to_string());
    buildah.add_to(
        &mut daemon,
        &[
            "run",
            "--network",
            "host",
            &container,
            "--",
            "/usr/bin/xdp-agg",
            "serve",
            "--engine",
            "userspace",
            "--control",
            &control,
            "--data-addr",
            &addr,
        ],
    );
    lab.daemon = Some(Process::serve("a container", daemon).expect("it gets ready"));
    let workers = lab.connect("contained", 2, |settings| settings);
    check_sums(&workers, 10_000);
    let told = buildah.run(&["inspect", "--format", "{{.OCIv1.Config.Entrypoint}}", &container]);
    assert_eq!(told, "[/usr/bin/xdp-agg]");
}
