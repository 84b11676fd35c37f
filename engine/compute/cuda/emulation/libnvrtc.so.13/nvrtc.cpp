// The compiler: g++, for sources that kernel.h is put before.
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <regex>
#include <stdexcept>
#include <string>
#include <vector>

#include "image.h"
#include "rewrite.h"

extern char **environ;

namespace {

enum { SUCCESS = 0, INVALID_INPUT = 3, INVALID_PROGRAM = 4, INVALID_OPTION = 5, COMPILATION = 6 };

// architectures are those that code is made for; of 90 also 90a.
const int architectures[] = {80, 86, 87, 89, 90, 100, 103, 120, 121};
constexpr int ARCHITECTURES = sizeof architectures / sizeof *architectures;

struct Program {
    std::string name, source, log, code;
};

// folder is where this library lies, with the headers.
std::string folder() {
    Dl_info info;
    dladdr((void *)folder, &info);
    std::string path = info.dli_fname;
    return path.substr(0, path.rfind('/'));
}

std::string read(const std::string &path) {
    std::ifstream f(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(f), {});
}

void write(const std::string &path, const std::string &text) { std::ofstream(path, std::ios::binary) << text; }

// command runs a program, whose standard error goes to a file, and returns its status.
int command(const std::vector<std::string> &args, const std::string &errors) {
    std::vector<char *> argv;
    for (const auto &a : args) argv.push_back((char *)a.c_str());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 2, errors.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t none, every;
    sigemptyset(&none);
    sigfillset(&every);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &every);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    pid_t pid;
    int failed = posix_spawnp(&pid, argv[0], &files, &attributes, argv.data(), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    if (failed) {
        write(errors, args[0] + ": " + strerror(failed) + "\n");
        return 127;
    }
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

// worded makes "name(line): error: …" of g++'s "name:line:column: error: …", and leaves
// out the lines that say in which function that is.
std::string worded(const std::string &log) {
    std::string placed = std::regex_replace(log, std::regex("(^|\n)([^:\n ]+):([0-9]+):[0-9]+: "), "$1$2($3): ");
    return std::regex_replace(placed, std::regex("(^|\n)[^\n]*: (In|At) [^\n]*:(?=\n)"), "$1");
}

bool checks() {
    const char *v = getenv("OUTRIDER_EMULATION_CHECK");
    return v && *v && strcmp(v, "0");
}

int compile(Program &p, const std::string &architecture, const std::string &temporary) {
    std::string in = temporary + "/in.cu", pre = temporary + "/pre.ii", out = temporary + "/out.cpp", object = temporary + "/out.so", log = temporary + "/log";
    write(in, "# 1 \"" + p.name + "\"\n" + p.source);
    std::vector<std::string> preprocess = {"g++", "-E", "-x", "c++", "-std=c++17", "-DNO_PTX", "-D__CUDACC__", "-D__CUDA_ARCH__=" + architecture.substr(0, architecture.find('a')) + "0", "-o", pre, in};
    if (architecture == "90a") preprocess.insert(preprocess.begin() + 1, "-D__CUDA_ARCH_FEAT_SM90_ALL");
    if (command(preprocess, log)) {
        p.log = worded(read(log));
        return COMPILATION;
    }
    try {
        write(out, emulated::rewrite(read(pre)));
    } catch (const std::runtime_error &e) {
        p.log = p.name + "(" + e.what() + ")\n";
        return COMPILATION;
    }
    std::vector<std::string> build = {"g++", "-std=c++17", "-O2", "-g1", "-fPIC", "-shared", "-march=x86-64-v3", "-ffp-contract=fast", "-fno-gnu-unique", "-fno-exceptions", "-fno-rtti",
                                      "-fno-asynchronous-unwind-tables", "-fno-stack-protector", "-fno-threadsafe-statics", "-fno-strict-aliasing", "-Wno-unknown-pragmas", "-I" + folder() + "/source/include",
                                      "-include", "kernel.h", "-o", object, out};
    if (checks())
        build.insert(build.begin() + 1, {"-fsanitize=kernel-address", "--param=asan-instrumentation-with-call-threshold=0", "--param=asan-stack=0", "--param=asan-globals=0"});
    int status = command(build, log);
    p.log = worded(read(log));
    if (status) return COMPILATION;
    std::string code = read(object);
    emulated::Image head;
    memcpy(head.magic, emulated::IMAGE, sizeof head.magic);
    head.size = code.size();
    p.code = std::string((const char *)&head, sizeof head) + code;
    return SUCCESS;
}
} // namespace

extern "C" {

// nvrtcVersion is 13, and a number of what the compiled code depends on beside its
// source: a cache must not take it for another compiler's.
int nvrtcVersion(int *major, int *minor) {
    uint32_t sum = 2166136261u;
    std::string all = checks() ? "checks" : "";
    for (const char *name : {"/source/include/kernel.h", "/source/include/ptx.h", "/libnvrtc.so.13"}) all += read(folder() + name);
    for (unsigned char c : all) sum = (sum ^ c) * 16777619u;
    *major = 13;
    *minor = 1000 + (int)(sum % 1000000000);
    return SUCCESS;
}

int nvrtcGetNumSupportedArchs(int *n) {
    *n = ARCHITECTURES;
    return SUCCESS;
}

int nvrtcGetSupportedArchs(int *to) {
    memcpy(to, architectures, sizeof architectures);
    return SUCCESS;
}

int nvrtcCreateProgram(Program **to, const char *source, const char *name, int headers, const char *const *, const char *const *) {
    if (!source || headers) return INVALID_INPUT;
    *to = new Program{name && *name ? name : "default_program", source, "", ""};
    return SUCCESS;
}

int nvrtcDestroyProgram(Program **p) {
    if (!p || !*p) return INVALID_PROGRAM;
    delete *p;
    *p = nullptr;
    return SUCCESS;
}

int nvrtcCompileProgram(Program *p, int n, const char *const *options) {
    if (!p) return INVALID_PROGRAM;
    std::string architecture;
    for (int i = 0; i < n; i++) {
        const std::string o = options[i], prefix = "--gpu-architecture=sm_";
        if (o.compare(0, prefix.size(), prefix) == 0) architecture = o.substr(prefix.size());
    }
    bool is = architecture == "90a";
    for (int k : architectures) is = is || std::to_string(k) == architecture;
    if (!is) {
        p->log = "error: invalid value for --gpu-architecture (sm_" + architecture + ")\n";
        return INVALID_OPTION;
    }
    const char *base = getenv("TMPDIR");
    std::string temporary = std::string(base && *base ? base : "/tmp") + "/emulation-XXXXXX";
    if (!mkdtemp(temporary.data())) return COMPILATION;
    int status = compile(*p, architecture, temporary);
    for (const char *f : {"/in.cu", "/pre.ii", "/out.cpp", "/out.so", "/log"}) unlink((temporary + f).c_str());
    rmdir(temporary.c_str());
    return status;
}

int nvrtcGetProgramLogSize(Program *p, size_t *n) {
    *n = p->log.size() + 1;
    return SUCCESS;
}
int nvrtcGetProgramLog(Program *p, char *to) {
    memcpy(to, p->log.c_str(), p->log.size() + 1);
    return SUCCESS;
}
int nvrtcGetCUBINSize(Program *p, size_t *n) {
    *n = p->code.size();
    return SUCCESS;
}
int nvrtcGetCUBIN(Program *p, char *to) {
    memcpy(to, p->code.data(), p->code.size());
    return SUCCESS;
}
}
