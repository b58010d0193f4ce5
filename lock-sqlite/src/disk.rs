//! Whether the file is where processes of one machine can share it.

use std::path::Path;

/// Says so when the file is on a network file system.
pub(crate) fn warning(path: &Path) -> Option<String> {
    let name = network(path)?;
    Some(format!(
        "the file {} is on a network file system ({name}): locks hold between the processes of \
         one machine at best; put it on a local disk",
        path.display()
    ))
}

/// The name of the network file system that the file is on.
#[cfg(target_os = "linux")]
pub(crate) fn network(path: &Path) -> Option<&'static str> {
    // The kernel's magic numbers, <https://man7.org/linux/man-pages/man2/statfs.2.html>
    const NETWORKS: [(u32, &str); 8] = [
        (0x6969, "NFS"),
        (0xff53_4d42, "CIFS"),
        (0xfe53_4d42, "SMB2"),
        (0x517b, "SMB"),
        (0x0102_1997, "9P"),
        (0x00c3_6400, "Ceph"),
        (0x5346_414f, "AFS"),
        (0x0bd0_0bd0, "Lustre"),
    ];
    let kind = rustix::fs::statfs(path).ok()?.f_type as u32;
    let (_, name) = NETWORKS.iter().find(|(magic, _)| *magic == kind)?;
    Some(name)
}

/// Only Linux can tell.
#[cfg(not(target_os = "linux"))]
pub(crate) fn network(_path: &Path) -> Option<&'static str> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #[test]
    fn a_local_disk_gives_no_warning() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert_eq!(super::warning(file.path()), None);
    }
}
