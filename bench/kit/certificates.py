"""An authority and what it vouches for, made by openssl for one run."""
from .process import find, fresh, run

KINDS = ("p256", "rsa")  # keys of the server's certificate
DAYS = "3650"


def key_words(kind):
    return ["rsa:2048"] if kind == "rsa" else ["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]


def make(work):
    """ca.pem, and NAME.pem with NAME.key for p256, rsa (the server) and phone (the generator)."""
    home = fresh(work / "certificates")
    openssl = find("openssl")
    run([openssl, "req", "-x509", "-newkey", *key_words("p256"), "-nodes", "-days", DAYS, "-subj", "/CN=bench authority",
         "-keyout", "ca.key", "-out", "ca.pem"], cwd=home)
    (home / "extensions").write_text(
        "basicConstraints = CA:FALSE\nextendedKeyUsage = serverAuth, clientAuth\n"
        "subjectAltName = URI:sip:bench, DNS:bench, URI:sip:127.0.0.1, IP:127.0.0.1\n")
    for name in (*KINDS, "phone"):
        run([openssl, "req", "-newkey", *key_words(name), "-nodes", "-subj", "/CN=bench", "-keyout", f"{name}.key",
             "-out", f"{name}.csr"], cwd=home)
        run([openssl, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
             "-days", DAYS, "-extfile", "extensions", "-out", f"{name}.pem"], cwd=home)
        (home / f"{name}.key").chmod(0o600)
    return home
