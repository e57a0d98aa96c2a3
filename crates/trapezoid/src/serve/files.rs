//! File descriptors: connections must not take those of the journal, of name service and of the admin pages.

use sip_net::settings::Settings;

use settings::Loaded;

/// Descriptors for everything but connections: listeners, event loops, stores, name service, admin pages.
const RESERVED: u64 = 1024;

/// Raises the limit of open files as far as possible. Returns the settings of sockets, with no more
/// connections for each worker than fit within the limit. At that bound a peer is refused and counted.
/// Without descriptors nothing at all could be opened, neither a socket nor a file of the store.
pub(crate) fn fit_connections(loaded: &Loaded) -> Settings {
    let mut settings = loaded.shell.sockets.clone();
    let files = match sip_net::bind::raise_open_files() {
        Ok(files) => files,
        Err(error) => {
            tracing::warn!(
                error = error.to_string(),
                "the limit of open files stays as it is"
            );
            return settings;
        }
    };
    let configured = settings.connections;
    settings.connections = configured.min(fitting(files, loaded.core.workers));
    if settings.connections < configured {
        tracing::info!(
            open_files = files,
            connections = settings.connections,
            configured,
            "each worker takes as many connections as the limit of open files allows (LimitNOFILE of the \
             service, ulimit -n)"
        );
    }
    settings
}

/// Connections of each worker that fit in this many descriptors.
fn fitting(files: u64, workers: u16) -> usize {
    // If there are few descriptors, half of them are reserved.
    let reserved = RESERVED.min(files / 2);
    let each = (files - reserved) / u64::from(workers.max(1));
    usize::try_from(each).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_the_rest() {
        assert_eq!(fitting(20_000, 2), 9_488);
        assert_eq!(fitting(1_024, 1), 512);
        assert_eq!(fitting(1_024, 4), 128);
        assert_eq!(fitting(0, 4), 1);
        assert_eq!(fitting(1 << 20, 0), (1 << 20) - 1024);
    }
}
