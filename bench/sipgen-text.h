/*
 * What sipgen knows of texts: header fields, digest credentials; and its histogram of times.
 * Part of sipgen.c, which includes it once.
 */
#ifndef SIPGEN_TEXT_H
#define SIPGEN_TEXT_H
#include <openssl/md5.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/* value of first header with this name (names as the generator writes them) */
static const char *hdr(const char *m, int n, const char *name, int *len)
{
	int nl = strlen(name);
	const char *e = m + n, *p = m;
	while (p < e) {
		const char *nlp = memchr(p, '\n', e - p);
		if (!nlp) return 0;
		if (nlp - p <= 1) return 0;     /* blank line */
		if (nlp - p > nl && p[nl] == ':' && !strncasecmp(p, name, nl)) {
			p += nl + 1;
			while (*p == ' ') p++;
			*len = nlp - p - (nlp[-1] == '\r');
			return p;
		}
		p = nlp + 1;
	}
	return 0;
}
static char *copy_all(char *o, const char *m, int n, const char *name, const char *as)
{
	int nl = strlen(name);
	const char *e = m + n, *p = m;
	while (p < e) {
		const char *nlp = memchr(p, '\n', e - p);
		if (!nlp || nlp - p <= 1) break;
		if (nlp - p > nl && p[nl] == ':' && !strncasecmp(p, name, nl)) {
			o = stpcpy(o, as);
			const char *v = p + nl;
			memcpy(o, v, nlp + 1 - v);
			o += nlp + 1 - v;
		}
		p = nlp + 1;
	}
	return o;
}
static void hex(const unsigned char *d, char *o)
{
	static const char x[] = "0123456789abcdef";
	for (int i = 0; i < 16; i++) { o[2 * i] = x[d[i] >> 4]; o[2 * i + 1] = x[d[i] & 15]; }
	o[32] = 0;
}
static int param(const char *v, int n, const char *name, char *out, int cap)
{
	int nl = strlen(name);
	for (int i = 0; i + nl + 1 < n; i++)
		if ((i == 0 || v[i - 1] == ' ' || v[i - 1] == ',') && !strncasecmp(v + i, name, nl) && v[i + nl] == '=') {
			int j = i + nl + 1, q = v[j] == '"', k = 0;
			if (q) j++;
			while (j < n && k < cap - 1 && (q ? v[j] != '"' : v[j] != ',' && v[j] != ' ')) out[k++] = v[j++];
			out[k] = 0;
			return 1;
		}
	return 0;
}
static int auth_hdr(char *o, const char *v, int n, const char *hname, uint32_t user, const char *method, const char *uri)
{
	char realm[64], nonce[128], qop[32], t[512], h1[33], h2[33], r[33];
	unsigned char d[16];
	if (!param(v, n, "realm", realm, sizeof realm) || !param(v, n, "nonce", nonce, sizeof nonce)) return 0;
	int hasq = param(v, n, "qop", qop, sizeof qop);
	int l = sprintf(t, "user%05u:%s:pass%05u", user, realm, user);
	MD5((void *)t, l, d); hex(d, h1);
	l = sprintf(t, "%s:%s", method, uri);
	MD5((void *)t, l, d); hex(d, h2);
	if (hasq) l = sprintf(t, "%s:%s:00000001:0a4f113b:auth:%s", h1, nonce, h2);
	else l = sprintf(t, "%s:%s:%s", h1, nonce, h2);
	MD5((void *)t, l, d); hex(d, r);
	return sprintf(o, "%s: Digest username=\"user%05u\", realm=\"%s\", nonce=\"%s\", uri=\"%s\", response=\"%s\", algorithm=MD5%s\r\n",
		hname, user, realm, nonce, uri, r, hasq ? ", qop=auth, nc=00000001, cnonce=\"0a4f113b\"" : "");
}

#define NB 512
static uint64_t hist[NB];
static void lat_add(uint64_t ns)
{
	uint64_t us = ns / 1000 + 1;
	int lz = 63 - __builtin_clzll(us);
	int sub = lz >= 3 ? (us >> (lz - 3)) & 7 : (us << (3 - lz)) & 7;
	int b = lz * 8 + sub;
	hist[b < NB ? b : NB - 1]++;
}
static double lat_pct(double p)
{
	uint64_t tot = 0, acc = 0;
	for (int i = 0; i < NB; i++) tot += hist[i];
	for (int i = 0; i < NB; i++) {
		acc += hist[i];
		if (tot && acc >= p * tot) return (double)(1ull << (i / 8)) * (1 + (i % 8 + 0.5) / 8.0) / 1000.0;
	}
	return 0;
}
#endif
