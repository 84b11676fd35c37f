#include "rewrite.h"

#include <cctype>
#include <stdexcept>
#include <vector>

namespace emulated {
namespace {

struct Reader {
    const std::string &s;
    size_t at = 0;

    bool is(char c) const { return at < s.size() && s[at] == c; }
    void space() {
        while (at < s.size() && isspace((unsigned char)s[at])) at++;
    }
    static bool part(char c) { return isalnum((unsigned char)c) || c == '_'; }
    std::string word() {
        size_t from = at;
        while (at < s.size() && part(s[at])) at++;
        return s.substr(from, at - from);
    }
    // bracketed reads from an opening bracket to the closing one, and gives what is between.
    std::string bracketed(char open, char close) {
        size_t from = ++at;
        for (int depth = 1; at < s.size(); at++) {
            if (s[at] == open) depth++;
            if (s[at] == close && --depth == 0) return s.substr(from, at++ - from);
        }
        throw std::runtime_error(std::string("no ") + close);
    }
    // string reads a literal, if one begins here.
    bool literal() {
        if (!is('"') && !is('\'')) return false;
        char quote = s[at++];
        while (at < s.size() && s[at] != quote) at += s[at] == '\\' ? 2 : 1;
        at++;
        return true;
    }
};

std::string trimmed(const std::string &s) {
    size_t a = s.find_first_not_of(" \t\n"), b = s.find_last_not_of(" \t\n");
    return a == std::string::npos ? "" : s.substr(a, b - a + 1);
}

std::vector<std::string> split(const std::string &s) {
    std::vector<std::string> parts(1);
    int depth = 0;
    for (char c : s) {
        if (c == '(' || c == '[' || c == '<') depth++;
        if (c == ')' || c == ']' || c == '>') depth--;
        if (c == ',' && depth == 0)
            parts.emplace_back();
        else
            parts.back() += c;
    }
    for (auto &p : parts) p = trimmed(p);
    return parts;
}

std::string lines(const std::string &s) {
    std::string n;
    for (char c : s)
        if (c == '\n') n += c;
    return n;
}

// shared makes of "float a[2][3], b" what defines them.
std::string shared(const std::string &text, bool external) {
    // The type ends where the first name begins: the word before "[", "," or the end.
    size_t end = 0;
    for (int depth = 0; end < text.size(); end++) {
        if (text[end] == '<' || text[end] == '(') depth++;
        if (text[end] == '>' || text[end] == ')') depth--;
        if (depth == 0 && (text[end] == '[' || text[end] == ',')) break;
    }
    size_t name = end;
    while (name > 0 && isspace((unsigned char)text[name - 1])) name--;
    while (name > 0 && Reader::part(text[name - 1])) name--;
    std::string type = trimmed(text.substr(0, name)), made;
    if (type.empty()) throw std::runtime_error("__shared__ without a type: " + text);
    for (const std::string &d : split(text.substr(name))) {
        size_t bracket = d.find('[');
        std::string id = trimmed(d.substr(0, bracket)), dims = bracket == std::string::npos ? "" : d.substr(bracket);
        if (external) {
            made += type + " *const " + id + " = (" + type + " *)emulated_dynamic();";
        } else {
            made += "static char key_of_" + id + "; typedef " + type + " type_of_" + id + dims + "; type_of_" + id + " &" + id + " = *(type_of_" + id +
                    " *)emulated_shared(&key_of_" + id + ", sizeof(type_of_" + id + "), alignof(type_of_" + id + "));";
        }
    }
    return made + lines(text);
}

// kernel reads from behind __global__ to the parameters' end, and adds to the table.
void kernel(Reader &r, std::string &table, std::string &stubs) {
    std::string bounds = "0", cluster = "0", last;
    for (;;) {
        r.space();
        std::string w = r.word();
        if (w.empty()) throw std::runtime_error("__global__ without a function");
        r.space();
        if (!r.is('(')) {
            last = w;
            continue;
        }
        std::string args = r.bracketed('(', ')');
        if (w == "__launch_bounds__") {
            bounds = args;
        } else if (w == "__cluster_dims__") {
            cluster = args;
        } else {
            last = w;
            auto parameters = split(args);
            std::string type = trimmed(args);
            if (type.empty()) return; // a kernel without one is none that the engine launches
            if (parameters.size() != 1) throw std::runtime_error("kernel " + last + " has more than one parameter");
            size_t name = type.size();
            while (name > 0 && Reader::part(type[name - 1])) name--;
            type = trimmed(type.substr(0, name));
            stubs += "static void run_" + last + "(const void *p) { " + last + "(*(" + type + " *)p); }\n";
            table += "{\"" + last + "\", run_" + last + ", sizeof(" + type + "), {" + bounds + "}, {" + cluster + "}}, ";
            return;
        }
    }
}
} // namespace

std::string rewrite(const std::string &source) {
    std::string out, table, stubs;
    Reader r{source};
    size_t line = 1, counted = 0;
    try {
        while (r.at < source.size()) {
            size_t from = r.at;
            if (r.literal()) {
                out.append(source, from, r.at - from);
            } else if (Reader::part(source[r.at])) {
                std::string w = r.word();
                if (w == "__shared__") {
                    size_t end = source.find(';', r.at);
                    if (end == std::string::npos) throw std::runtime_error("__shared__ without an end");
                    std::string before = trimmed(out.substr(out.size() < 16 ? 0 : out.size() - 16));
                    bool external = before.size() >= 6 && before.compare(before.size() - 6, 6, "extern") == 0;
                    if (external) out.erase(out.rfind("extern"));
                    out += shared(source.substr(r.at, end - r.at), external);
                    r.at = end + 1;
                } else {
                    if (w == "__global__") kernel(r, table, stubs);
                    out.append(source, from, r.at - from);
                }
            } else {
                out += source[r.at++];
            }
        }
    } catch (const std::runtime_error &e) {
        for (; counted < r.at && counted < source.size(); counted++) line += source[counted] == '\n';
        throw std::runtime_error(std::to_string(line) + ": " + e.what());
    }
    return out + "\n" + stubs + "extern \"C\" const emulated::Kernel emulated_kernels[] = {" + table + "{}};\n";
}
} // namespace emulated
