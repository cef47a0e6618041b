/* A log-likelihood in C, fitted by qbvi over a pipe:

       cc -O2 -o simulator simulator.c -lm
       ./simulator 'qbvi serve --prior prior.toml --out posterior.npz'

   The program starts the server, reads its points, one JSON object a line, and answers with
   values. A real program would use a JSON library. The lines are simple enough to be read without
   one. */

#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define N 20
#define LOG_2_PI 1.8378770664093453

/* y = 1 + 2 x + noise, with noise from a fixed rule so that every run fits the same data. */
static double log_likelihood(double intercept, double slope, double sigma)
{
    double sum = 0.0;
    for (int i = 0; i < N; i++) {
        double x = (i - 9.5) / 5.0;
        double y = 1.0 + 2.0 * x + 0.5 * sin(12.9898 * i);
        double r = (y - intercept - slope * x) / sigma;
        sum -= 0.5 * r * r + log(sigma) + 0.5 * LOG_2_PI;
    }
    return sum;
}

/* The number after "name": in a line; brackets of an array are skipped. */
static const char *number_after(const char *line, const char *name, double *value)
{
    const char *at = strstr(line, name);
    if (!at) {
        fprintf(stderr, "no %s in: %s", name, line);
        exit(1);
    }
    at += strlen(name) + strspn(at + strlen(name), "\": [,");
    char *end;
    *value = strtod(at, &end);
    return end;
}

static void start(const char *command, FILE **from, FILE **to)
{
    int down[2], up[2];
    if (pipe(down) || pipe(up)) {
        perror("pipe");
        exit(1);
    }
    if (fork() == 0) {
        dup2(down[0], 0);
        dup2(up[1], 1);
        close(down[0]), close(down[1]), close(up[0]), close(up[1]);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    close(down[0]), close(up[1]);
    *to = fdopen(down[1], "w");
    *from = fdopen(up[0], "r");
}

int main(int argc, char **argv)
{
    FILE *from, *to;
    char *line = NULL;
    size_t room = 0;
    int status;
    if (argc != 2) {
        fprintf(stderr, "usage: %s 'qbvi serve --prior prior.toml'\n", argv[0]);
        return 2;
    }
    start(argv[1], &from, &to);
    while (getline(&line, &room, from) > 0) {
        if (strstr(line, "\"type\": \"ask\"")) {
            double id, intercept, slope, sigma;
            number_after(line, "\"id\"", &id);
            const char *rest = number_after(line, "\"beta\"", &intercept);
            slope = strtod(rest + strspn(rest, ", "), NULL);
            number_after(line, "\"sigma\"", &sigma);
            double value = log_likelihood(intercept, slope, sigma);
            if (isfinite(value))
                fprintf(to, "{\"type\": \"tell\", \"id\": %.0f, \"value\": %.17g}\n", id, value);
            else
                fprintf(to, "{\"type\": \"tell\", \"id\": %.0f, \"error\": \"not finite\"}\n", id);
            fflush(to);
        } else if (!strstr(line, "\"type\": \"progress\"")) {
            fputs(line, stdout);
        }
    }
    free(line);
    fclose(to);
    wait(&status);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
