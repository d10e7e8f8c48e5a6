import java.lang.annotation.Annotation;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;

/**
 * Runs the methods of a test class in an ordinary program, by reflection. With an argument, only the test class sees
 * the libraries in these files: the product cannot look for them.
 */
public class MAIN {
    private static final class Apart extends java.net.URLClassLoader {
        Apart(String files) throws Exception {
            super(urls(files), MAIN.class.getClassLoader());
        }

        private static java.net.URL[] urls(String files) throws Exception {
            List<java.net.URL> found = new ArrayList<>();
            for (String one : files.split(":")) {
                found.add(new java.io.File(one).toURI().toURL());
            }
            return found.toArray(new java.net.URL[0]);
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            boolean mine = name.equals(NAME) || name.startsWith(NAME + "$");
            if (!mine || findLoadedClass(name) != null) {
                return super.loadClass(name, resolve);
            }
            try (java.io.InputStream in = getParent().getResourceAsStream(name.replace('.', '/') + ".class")) {
                byte[] data = in.readAllBytes();
                return defineClass(name, data, 0, data.length);
            } catch (java.io.IOException error) {
                throw new ClassNotFoundException(name, error);
            }
        }
    }

    private static final String NAME = MAIN.class.getName().replace("MAIN", "CLASS");
    private static Class<?> type;

    private static boolean cannotLink(Throwable error) {
        for (Throwable one = error; one != null; one = one.getCause()) {
            if (one instanceof LinkageError) {
                return true;
            }
        }
        return false;
    }

    private static boolean has(Method method, String... names) {
        for (Annotation one : method.getAnnotations()) {
            for (String name : names) {
                if (one.annotationType().getSimpleName().equals(name)) {
                    return true;
                }
            }
        }
        return false;
    }

    private static void each(Object object, String... names) throws Throwable {
        for (Method method : type.getDeclaredMethods()) {
            if (has(method, names)) {
                method.setAccessible(true);
                try {
                    method.invoke(object);
                } catch (InvocationTargetException error) {
                    throw error.getCause();
                }
            }
        }
    }

    public static void main(String[] given) throws Throwable {
        List<String> lines = new ArrayList<>();
        ClassLoader loader = given.length > 0 ? new Apart(given[0]) : MAIN.class.getClassLoader();
        Thread.currentThread().setContextClassLoader(loader);
        type = Class.forName(NAME, true, loader);
        each(null, "BeforeAll", "BeforeClass");
        for (Method method : type.getDeclaredMethods()) {
            boolean plain = method.getParameterCount() == 0 && !has(method, "Disabled", "Ignore");
            if (!has(method, "Test") || !plain) {
                continue;
            }
            String status = "ok";
            String why = "";
            try {
                java.lang.reflect.Constructor<?> make = type.getDeclaredConstructor();
                make.setAccessible(true);
                Object object = make.newInstance();
                each(object, "BeforeEach", "Before");
                method.setAccessible(true);
                method.invoke(object);
                each(object, "AfterEach", "After");
            } catch (InvocationTargetException error) {
                status = cannotLink(error) ? "unknown" : "failed";
                why = String.valueOf(error.getCause());
            }
            why = why.replaceAll("[^\\w .,:<>()=-]", " ");
            lines.add("[\"" + method.getName() + "\",\"" + status + "\",\"" + why + "\"]");
            java.nio.file.Files.write(java.nio.file.Paths.get("OUT"), lines); // the next test may never end
        }
        System.exit(0);
    }
}
