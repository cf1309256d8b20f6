//! Configurations that are refused.

use base64::{Engine, prelude::BASE64_STANDARD};
use rcgen::KeyPair;

use crate::{Authority, TLS, directory, load};

/// Configurations and their errors; `TLS` stands for the keys that all of them need.
const REFUSED: &[(&str, &str)] = &[
    (
        "tls_server_config:\n  cert_file: server.pem\n",
        "tls_server_config.key_file: missing",
    ),
    (
        "tls_server_config:\n  cert_file: nothing.pem\n",
        "web.yml: tls_server_config.cert_file: ",
    ),
    (
        "tls_server_config:\n  cert_file: nothing.pem\n",
        "nothing.pem: No such file",
    ),
    (
        "tls_server_config:\n  cert_file: ca.pem\n  key_file: server.key\n",
        "tls_server_config.cert: it does not match the key",
    ),
    (
        "tls_server_config:\n  cert_file: web.yml\n  key_file: server.key\n",
        "tls_server_config.cert: not a certificate in PEM format",
    ),
    (
        "tls_server_config:\n  cert: x\n  cert_file: server.pem\n  key_file: server.key\n",
        "tls_server_config.cert: set twice",
    ),
    (
        "TLS  client_ca_file: ca.pem\n",
        "tls_server_config.client_ca_file: it has no effect without a client_auth_type",
    ),
    (
        "TLS  client_auth_type: RequireAndVerifyClientCert\n",
        "tls_server_config.client_ca_file: missing",
    ),
    (
        "TLS  client_auth_type: Maybe\n",
        "tls_server_config.client_auth_type: unknown variant `Maybe`",
    ),
    (
        "TLS  client_auth_type: RequestClientCert\n  client_allowed_sans: [x]\n",
        "client_allowed_sans: needs client_auth_type",
    ),
    (
        "TLS  client_auth_type: RequireAnyClientCert\n  client_allowed_sans: [a@b]\n",
        "client_allowed_sans: \"a@b\": e-mail addresses",
    ),
    (
        "TLS  min_version: TLS10\n",
        "tls_server_config.min_version: TLS 1.0 and 1.1",
    ),
    (
        "TLS  min_version: TLS13\n  max_version: TLS12\n",
        "max_version: it is below min_version",
    ),
    (
        "TLS  cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]\n",
        "cipher_suites: \"TLS_RSA_WITH_RC4_128_SHA\" is not supported; supported are TLS_ECDHE_",
    ),
    (
        "TLS  curve_preferences: [CurveP521]\n",
        "curve_preferences: \"CurveP521\" is not supported; supported are X25519, CurveP256, CurveP384",
    ),
    (
        "TLS  cert_fiel: x\n",
        "tls_server_config.cert_fiel: unknown field",
    ),
    (
        "basic_auth_users: {alice: secret}\n",
        "basic_auth_users.alice (line 1): not a bcrypt hash",
    ),
    (
        "http_server_config: {headers: {X-Frame-Options: maybe}}\n",
        "headers.x-frame-options: \"maybe\" is not deny or sameorigin",
    ),
    (
        "rate_limit: {interval: 1s}\n",
        "rate_limit.burst: with 0 no request",
    ),
    (
        "rate_limit: {interval: 9999999999h, burst: 1}\n",
        "rate_limit.interval: \"9999999999h\" is not a duration",
    ),
    (
        "rate_limit: {interval: -1s, burst: 1}\n",
        "rate_limit.interval: \"-1s\" is not a duration",
    ),
    (
        "rate_limit: {interval: [1], burst: 1}\n",
        "rate_limit.interval: expected a duration",
    ),
    (
        "rate_limit: {interval: soon, burst: 1}\n",
        "rate_limit.interval: \"soon\" is not a duration",
    ),
    (
        "tls_server_config:\n  cert_file: ''\n  key_file: server.key\n",
        "tls_server_config.cert_file: missing",
    ),
];

/// Unusable keys, as openssl writes them, with the reason.
const KEYS: &[(&str, &str)] = &[
    (
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
        "tls_server_config.key: it is encrypted",
    ),
    (
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n",
        "tls_server_config.key: it is encrypted",
    ),
    (
        "AAAA\n",
        "tls_server_config.key: not a private key in PEM format",
    ),
];

/// Returns a key of an unsupported ECDSA curve: P-256's identifier with a different number.
fn key_of_another_curve() -> String {
    let mut key = KeyPair::generate().unwrap().serialize_der();
    let p256 = [0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
    let at = key.windows(8).position(|bytes| bytes == p256).unwrap();
    key[at + 7] = 6;
    let text = BASE64_STANDARD.encode(key);
    format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n")
}

#[test]
fn keys_that_cannot_be_used_are_refused_with_the_reason() {
    let directory = directory(&Authority::new(), TLS);
    let other = key_of_another_curve();
    let unserved = "tls_server_config.key: this kind of key is not supported";
    for (key, expected) in KEYS.iter().chain([&(&*other, unserved)]) {
        std::fs::write(directory.path().join("server.key"), key).unwrap();
        let error = load(&directory).err().unwrap();
        assert!(error.contains(expected), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn invalid_configurations_are_refused() {
    let ours = Authority::new();
    for (config, expected) in REFUSED {
        let directory = directory(&ours, &config.replace("TLS  ", &format!("{TLS}  ")));
        let error = load(&directory)
            .err()
            .unwrap_or_else(|| panic!("accepted: {config}"));
        assert!(error.contains(expected), "{config}: {error}");
        assert!(
            error.starts_with(&directory.path().display().to_string()),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn a_pipe_and_a_huge_file_are_refused_without_reading_them() {
    let directory = directory(&Authority::new(), "");
    let path = directory.path().join("web.yml");
    std::fs::remove_file(&path).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    let error = load(&directory).unwrap_err();
    assert!(error.contains("not a regular file"), "{error}");
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, vec![b'#'; (1 << 20) + 1]).unwrap();
    let error = load(&directory).unwrap_err();
    assert!(error.contains("larger than 1048576 bytes"), "{error}");
}
