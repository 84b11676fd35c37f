// Modules, their kernels, and launches.
#include <dlfcn.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>

#include "engine.h"
#include "image.h"

namespace emulated {

struct Module {
    void *library;
    int file; // open as long as the library is: by its number the loader tells modules apart
    const Kernel *kernels;
    Device *device;
    std::mutex lock;
    std::map<std::string, std::unique_ptr<Function>> functions;
};

int Launch::run(Stream &s, Work *next) {
    Engine &e = Engine::here();
    Launch *following = dynamic_cast<Launch *>(next);
    static const bool measured = setting("OUTRIDER_EMULATION_PROFILE", 0) != 0;
    if (!measured) return e.run(*this, following, s.device);
    timespec a, b;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    int status = e.run(*this, following, s.device);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    Spent &spent = s.spent[function->kernel->name];
    spent.seconds += (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
    spent.launches++;
    spent.threads += (size_t)blocks.x * blocks.y * blocks.z * threads.x * threads.y * threads.z;
    return status;
}

// config is CUlaunchConfig, and attribute CUlaunchAttribute.
struct Attribute {
    int id, pad;
    unsigned char value[64];
};
struct Config {
    unsigned grid[3], block[3], shared;
    void *stream;
    const Attribute *attributes;
    unsigned count;
};

static int launch(const Config &c, Function &f, void **parameters) {
    Stream *s = (Stream *)c.stream;
    if (!s || s->device != f.device) return INVALID_HANDLE;
    const Kernel &k = *f.kernel;
    unsigned long long threads = 1, blocks = 1;
    const unsigned most[3] = {0x7fffffff, 65535, 65535};
    for (int i = 0; i < 3; i++) {
        if (c.grid[i] == 0 || c.grid[i] > most[i] || c.block[i] == 0 || c.block[i] > 1024 || (k.cluster[i] && c.grid[i] % (unsigned)k.cluster[i])) return INVALID_VALUE;
        threads *= c.block[i], blocks *= c.grid[i];
    }
    if (threads > 1024 || c.shared > (unsigned)f.shared) return INVALID_VALUE;
    if (k.bounds[0] && threads > (unsigned)k.bounds[0]) return OUT_OF_RESOURCES;
    auto l = std::make_shared<Launch>();
    l->function = &f;
    l->blocks = {c.grid[0], c.grid[1], c.grid[2]};
    l->threads = {c.block[0], c.block[1], c.block[2]};
    l->shared = c.shared;
    l->overlap = false;
    for (unsigned i = 0; i < c.count; i++) {
        if (c.attributes[i].id != 6) return NOT_SUPPORTED; // programmatic stream serialization
        l->overlap = c.attributes[i].value[0] != 0;
    }
    l->parameter.assign((const char *)parameters[0], (const char *)parameters[0] + k.size);
    return s->add(l);
}
} // namespace emulated

using namespace emulated;

extern "C" {

int cuDeviceGetAttribute(int *v, int id, int d);

int cuModuleLoadData(void **to, const char *image) {
    Device *d = current();
    if (!d) return INVALID_CONTEXT;
    if (capturing) return refuse("cuModuleLoadData");
    Image head;
    memcpy(&head, image, sizeof head);
    if (memcmp(head.magic, IMAGE, sizeof head.magic)) return INVALID_IMAGE;
    int fd = memfd_create("kernels", MFD_CLOEXEC);
    if (fd < 0) return OUT_OF_MEMORY;
    const char *p = image + sizeof head;
    for (size_t left = head.size; left;) {
        ssize_t n = write(fd, p, left);
        if (n <= 0) {
            close(fd);
            return OUT_OF_MEMORY;
        }
        p += n, left -= (size_t)n;
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fprintf(stderr, "emulation: a module does not load: %s\n", dlerror());
    if (!library) {
        close(fd);
        return INVALID_IMAGE;
    }
    auto kernels = (const Kernel *)dlsym(library, "emulated_kernels");
    if (!kernels) {
        dlclose(library);
        close(fd);
        return INVALID_IMAGE;
    }
    auto m = new Module;
    m->library = library, m->file = fd, m->kernels = kernels, m->device = d;
    *to = m;
    return SUCCESS;
}

int cuModuleUnload(void *module) {
    Module *m = (Module *)module;
    if (!m) return INVALID_HANDLE;
    m->device->settle();
    dlclose(m->library);
    close(m->file);
    delete m;
    return SUCCESS;
}

int cuModuleGetFunction(void **to, void *module, const char *name) {
    Module *m = (Module *)module;
    if (!m) return INVALID_HANDLE;
    std::lock_guard<std::mutex> l(m->lock);
    for (const Kernel *k = m->kernels; k->name; k++) {
        if (strcmp(k->name, name)) continue;
        auto &f = m->functions[name];
        if (!f) {
            f = std::make_unique<Function>();
            f->kernel = k, f->device = m->device;
        }
        *to = f.get();
        return SUCCESS;
    }
    return NOT_FOUND;
}

int cuFuncSetAttribute(void *function, int id, int value) {
    Function *f = (Function *)function;
    if (!f) return INVALID_HANDLE;
    int most;
    cuDeviceGetAttribute(&most, 97, f->device->ordinal);
    if (id != 8 || value < 0 || value > most) return INVALID_VALUE; // the most dynamic shared memory
    f->shared = value;
    return SUCCESS;
}

int cuLaunchKernelEx(const Config *c, void *function, void **parameters, void **) {
    if (!function) return INVALID_HANDLE;
    return launch(*c, *(Function *)function, parameters);
}
}
