package io.latchgate;

import java.lang.reflect.RecordComponent;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/** JSON, because the JDK has none: maps, lists, strings, longs, doubles, booleans and null. */
final class Json {
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /** JSON that is written already: the caller may change the value while a call is repeated. */
    record Text(String text) {
        static Text of(String path, Object value) { return new Text(write(path, value, 0)); }

        /** Refuses what says nothing: an identity that was lost on its way here is the same for all callers that have lost theirs. */
        static Text ofIdentity(String path, Object value) {
            Text written = of(path, value);
            if (saysNothing(new Json(written.text).value())) throw new IllegalArgumentException(path + " says nothing: it is null or empty, or has only members that are");
            return written;
        }
    }

    private static boolean saysNothing(Object value) {
        if (value instanceof Map<?, ?> map) return map.values().stream().allMatch(Json::saysNothing);
        if (value instanceof List<?> list) return list.stream().allMatch(Json::saysNothing);
        return value == null || value.equals("");
    }

    private static final Pattern NUMBER = Pattern.compile("-?(0|[1-9]\\d*)(\\.\\d+)?([eE][+-]?\\d+)?");
    /** The deepest value that is written: a value may contain itself. */
    private static final int DEPTH_MAX = 100;

    static String write(Object value) { return write("the request", value, 0); }

    /** Refuses what JSON cannot say: two operations that differ only in that would be one. */
    private static String write(String path, Object value, int depth) {
        if (depth > DEPTH_MAX) throw new IllegalArgumentException(path + " is nested too deeply");
        if (value == null || value instanceof Boolean) return String.valueOf(value);
        if (value instanceof Text written) return written.text;
        if (value instanceof CharSequence) return quote(check(path, value.toString()));
        if (value instanceof Number number) {
            String text = number.toString();
            if (NUMBER.matcher(text).matches()) return text;
            throw new IllegalArgumentException(path + " is " + text + ", which JSON cannot say");
        }
        if (value instanceof List<?> list) {
            List<String> members = new ArrayList<>();
            for (Object member : list) members.add(write(path + "[" + members.size() + "]", member, depth + 1));
            return "[" + String.join(",", members) + "]";
        }
        if (value instanceof Set<?> set) {
            // It has no order, and Set.of has another one in each process.
            return set.stream().map(member -> write("a member of " + path, member, depth + 1)).sorted().collect(Collectors.joining(",", "[", "]"));
        }
        Map<String, Object> members = new LinkedHashMap<>();
        if (value instanceof Map<?, ?> map) {
            map.forEach((key, member) -> {
                if (!(key instanceof String) && !(key instanceof Long) && !(key instanceof Integer)) {
                    throw new IllegalArgumentException("a key of " + path + " is no text: " + (key == null ? null : key.getClass().getName()));
                }
                if (members.containsKey(key.toString())) throw new IllegalArgumentException(path + " has a key twice: " + key);
                members.put(check("a key of " + path, key.toString()), member);
            });
        } else if (value instanceof Record whole) {
            for (RecordComponent component : whole.getClass().getRecordComponents()) members.put(component.getName(), read(path, whole, component));
        } else {
            throw new IllegalArgumentException(path + " is no JSON: " + value.getClass().getName());
        }
        return members.entrySet().stream().map(member -> quote(member.getKey()) + ":" + write(path + "." + member.getKey(), member.getValue(), depth + 1))
                .collect(Collectors.joining(",", "{", "}"));
    }

    private static Object read(String path, Record whole, RecordComponent component) {
        try {
            component.getAccessor().setAccessible(true);
            return component.getAccessor().invoke(whole);
        } catch (ReflectiveOperationException | RuntimeException failure) {
            throw new IllegalArgumentException(path + "." + component.getName() + " cannot be read", failure);
        }
    }

    /** Refuses a text with half of a surrogate pair, which UTF-8 cannot say. */
    static String check(String path, String text) {
        if (!StandardCharsets.UTF_8.newEncoder().canEncode(text)) throw new IllegalArgumentException(path + " has half of a surrogate pair, which is no text");
        return text;
    }

    private static String quote(String string) {
        StringBuilder out = new StringBuilder("\"");
        for (char letter : string.toCharArray()) {
            if (letter == '"' || letter == '\\') out.append('\\').append(letter);
            else if (letter < ' ') out.append(String.format("\\u%04x", (int) letter));
            else out.append(letter);
        }
        return out.append('"').toString();
    }

    /** The object that this text is. */
    static Map<String, Object> parse(String text) {
        if (parseAny(text) instanceof Map<?, ?> map) return object(map);
        throw new IllegalArgumentException("no JSON object");
    }

    @SuppressWarnings("unchecked")
    static Map<String, Object> object(Map<?, ?> parsed) { return (Map<String, Object>) parsed; }

    static Object parseAny(String text) {
        Json json = new Json(text);
        Object value = json.value();
        if (json.peek() != 0) throw new IllegalArgumentException("no JSON");
        return value;
    }

    private char peek() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) at++;
        return at < text.length() ? text.charAt(at) : 0;
    }

    private boolean take(char expected) {
        if (peek() != expected) return false;
        at++;
        return true;
    }

    private void need(char expected) {
        if (!take(expected)) throw new IllegalArgumentException("JSON needs " + expected + " at " + at);
    }

    private Object value() {
        switch (peek()) {
            case '{': {
                Map<String, Object> map = new LinkedHashMap<>();
                for (at++; !take('}'); ) {
                    if (!map.isEmpty()) need(',');
                    if (peek() != '"') throw new IllegalArgumentException("JSON needs a name at " + at);
                    String name = string();
                    need(':');
                    map.put(name, value());
                }
                return map;
            }
            case '[': {
                List<Object> list = new ArrayList<>();
                for (at++; !take(']'); list.add(value())) if (!list.isEmpty()) need(',');
                return list;
            }
            case '"':
                return string();
            default:
                return word();
        }
    }

    private Object word() {
        int start = at;
        while (at < text.length() && (Character.isLetterOrDigit(text.charAt(at)) || "+-.".indexOf(text.charAt(at)) >= 0)) at++;
        String word = text.substring(start, at);
        switch (word) {
            case "null": return null;
            case "true": return true;
            case "false": return false;
            default: return word.matches("-?\\d{1,18}") ? (Object) Long.valueOf(word) : Double.valueOf(word);
        }
    }

    private String string() {
        StringBuilder out = new StringBuilder();
        for (at++; ; at++) {
            if (at >= text.length()) throw new IllegalArgumentException("JSON ends in a string");
            char letter = text.charAt(at);
            if (letter == '"') break;
            if (letter != '\\') {
                out.append(letter);
                continue;
            }
            letter = at + 1 < text.length() ? text.charAt(++at) : 0;
            int known = "bfnrt".indexOf(letter);
            if (known >= 0) {
                out.append("\b\f\n\r\t".charAt(known));
            } else if (letter == 'u' && at + 4 < text.length()) {
                out.append((char) Integer.parseInt(text.substring(at + 1, at + 5), 16));
                at += 4;
            } else {
                out.append(letter);
            }
        }
        at++;
        return out.toString();
    }
}
