/*
 * relay: what a SIP proxy would cost if SIP cost nothing. It takes the server's place between the
 * two ends of the load generator and looks at no message beyond the port that it came from.
 *
 *   relay udp PORT CALLER CALLEE     datagrams from the callee's port go to the caller's, others
 *                                    to the callee's; up to 64 for each system call
 *   relay tcp PORT CALLER CALLEE     one connection at a time, joined to one to the callee
 *   relay register PORT CALLER -     each request comes back as its own 200, with a tag in To
 *
 * All on 127.0.0.1, until a signal ends it.     cc -O2 -o relay relay.c
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BATCH = 64, DATAGRAM = 2048, BUFFER = 4 << 20 };

static struct sockaddr_in local(const char *port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return a;
}

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static int bound(int type, struct sockaddr_in *at)
{
	int fd = socket(AF_INET, type, 0), one = 1, size = BUFFER;
	if (fd < 0) fail("socket");
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size))
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
	if (bind(fd, (struct sockaddr *)at, sizeof *at)) fail("bind");
	return fd;
}

/* What takes the place of the first line, and what a response has at the end of To (RFC 3261, 8.2.6.2). */
static char status_line[] = "SIP/2.0 200 OK", tag[] = ";tag=floor";
enum { PARTS = 4 };

/* A request as its own response, in parts; how many. */
static int answered(char *bytes, size_t length, struct iovec *parts)
{
	char *line = memchr(bytes, '\r', length), *end = bytes + length;
	char *to = line ? memmem(line, end - line, "\r\nTo: ", 6) : NULL;
	char *cut = to ? memchr(to + 2, '\r', end - to - 2) : NULL;
	if (!cut) return 0;
	parts[0] = (struct iovec){status_line, sizeof status_line - 1};
	parts[1] = (struct iovec){line, cut - line};
	parts[2] = (struct iovec){tag, sizeof tag - 1};
	parts[3] = (struct iovec){cut, end - cut};
	return PARTS;
}

static void datagrams(int fd, struct sockaddr_in *caller, struct sockaddr_in *callee, int answer)
{
	static char bytes[BATCH][DATAGRAM];
	static struct mmsghdr messages[BATCH];
	static struct iovec parts[BATCH][PARTS];
	static struct sockaddr_in from[BATCH];
	for (;;) {
		for (int i = 0; i < BATCH; i++) {
			parts[i][0] = (struct iovec){bytes[i], DATAGRAM};
			messages[i].msg_hdr = (struct msghdr){.msg_name = &from[i], .msg_namelen = sizeof from[i],
				.msg_iov = parts[i], .msg_iovlen = 1};
		}
		int got = recvmmsg(fd, messages, BATCH, MSG_WAITFORONE, NULL);
		for (int i = 0; i < got; i++) {
			struct msghdr *out = &messages[i].msg_hdr;
			parts[i][0].iov_len = messages[i].msg_len;
			if (!answer)
				out->msg_name = from[i].sin_port == callee->sin_port ? caller : callee;
			else /* what is no request goes back empty */
				out->msg_iovlen = answered(bytes[i], messages[i].msg_len, parts[i]);
		}
		for (int sent = 0; sent < got;) {
			int more = sendmmsg(fd, messages + sent, got - sent, 0);
			sent += more > 0 ? more : 1; /* one that cannot be sent is lost, as datagrams are */
		}
	}
}

/* What is there, up to 64 KiB; 0 when the connection is over. */
static int pass_on(int from, int to)
{
	static char bytes[65536];
	ssize_t got = recv(from, bytes, sizeof bytes, 0);
	if (got < 0 && errno == EINTR) return 1;
	if (got <= 0) return 0;
	for (ssize_t done = 0; done < got;) {
		ssize_t more = send(to, bytes + done, got - done, MSG_NOSIGNAL);
		if (more < 0 && errno == EINTR) continue;
		if (more <= 0) return 0;
		done += more;
	}
	return 1;
}

static void connections(int listener, struct sockaddr_in *callee)
{
	for (;;) {
		int one = 1, in = accept(listener, NULL, NULL), out;
		if (in < 0) continue;
		struct pollfd both[2] = {{.fd = in, .events = POLLIN}, {.events = POLLIN}};
		char first;
		/* somebody who only looks whether we listen sends nothing */
		if (recv(in, &first, 1, MSG_PEEK) == 1 && (out = socket(AF_INET, SOCK_STREAM, 0)) >= 0) {
			both[1].fd = out;
			setsockopt(in, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
			setsockopt(out, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
			int open = connect(out, (struct sockaddr *)callee, sizeof *callee) == 0;
			while (open && poll(both, 2, -1) > 0) {
				if (both[0].revents) open = pass_on(in, out);
				if (open && both[1].revents) open = pass_on(out, in);
			}
			close(out);
		}
		close(in);
	}
}

int main(int count, char **words)
{
	if (count != 5) {
		fprintf(stderr, "usage: relay udp|tcp|register PORT CALLER CALLEE\n");
		return 2;
	}
	struct sockaddr_in at = local(words[2]), caller = local(words[3]), callee = local(words[4]);
	if (!strcmp(words[1], "tcp")) {
		int listener = bound(SOCK_STREAM, &at);
		if (listen(listener, 16)) fail("listen");
		connections(listener, &callee);
	}
	datagrams(bound(SOCK_DGRAM, &at), &caller, &callee, !strcmp(words[1], "register"));
}
